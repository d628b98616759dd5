"""The helpers that scripts import from here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from horovod.common.basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)

__all__ = [
    "ccl_built",
    "check_extension",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gpu_available",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
]


def check_extension(*_: Any) -> None:
    """Horovod looked here whether it was compiled for a framework; ringcore is not compiled for any."""


def gpu_available(*_: Any) -> bool:
    """Whether tensors on GPUs can be reduced."""
    return cuda_built()


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Any], parts: int) -> Iterator[Sequence[Any]]:
    """Deal items to so many lists of nearly the same length, in order."""
    share, rest = divmod(len(items), parts)
    begin = 0
    for part in range(parts):
        end = begin + share + (part < rest)
        yield items[begin:end]
        begin = end
