"""The helpers that scripts import from here."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

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
    "check_installed_version",
    "cuda_built",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
]

_Item = TypeVar("_Item")

_cache = functools.cache


def check_extension(*_: Any) -> None:
    """Horovod looked here whether it was compiled for a framework; ringcore is not compiled for any."""


def check_installed_version(*_: Any) -> None:
    """Horovod looked here for the version that it was compiled for; ringcore is not compiled for any."""


@functools.cache
def extension_available(ext_base_name: str, verbose: bool = False) -> bool:  # noqa: ARG001
    """Whether a framework ("torch", "tensorflow", "mxnet") and ringcore's adapter for it are installed."""
    return all(importlib.util.find_spec(name) for name in (ext_base_name, f"ringcore_{ext_base_name}"))


def gpu_available(ext_base_name: str = "torch", verbose: bool = False) -> bool:  # noqa: ARG001
    """Whether a framework's tensors on GPUs can be reduced here."""
    if ext_base_name != "torch":
        return False
    import torch

    return torch.cuda.is_available()


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Set environment variables for a while; those that are None stay as they are."""
    before = {name: os.environ.get(name) for name, value in variables.items() if value is not None}
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """A function that tells the operation by either of the arguments for it.

    Args:
        reduce_ops: Has `Average` and `Sum`.
    """

    def chosen(op: Any, average: bool | None) -> Any:
        if average is None:
            return reduce_ops.Average if op is None else op
        if op is not None:
            raise ValueError("pass either op or average, which is an old name for op=Average and op=Sum")
        warnings.warn("average= is an old name for op=Average and op=Sum", DeprecationWarning, stacklevel=3)
        return reduce_ops.Average if average else reduce_ops.Sum

    return chosen


def is_iterable(x: Any) -> bool:
    """Whether `for` works on it."""
    return isinstance(x, Iterable) or hasattr(x, "__getitem__")


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is the one of `target`, of three numbers, or a later one.

    Raises:
        ValueError: `target` has not three numbers, or one of them is no text.
    """
    if not isinstance(ver, str) or not isinstance(target, str) or target.count(".") != 2:
        raise ValueError(f"versions are texts, and the second has three numbers; got {ver!r} and {target!r}")
    from packaging.version import parse

    return parse(ver) >= parse(target)


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[_Item], parts: int) -> list[Sequence[_Item]]:
    """Deal items to so many lists of nearly the same length, in order."""
    share, rest = divmod(len(items), parts)
    begins = [part * share + min(part, rest) for part in range(parts + 1)]
    return [items[begin:end] for begin, end in itertools.pairwise(begins)]
