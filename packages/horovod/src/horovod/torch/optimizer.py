"""The optimizer, with Horovod's signature."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import ringcore_torch as ring
import torch
from ringcore import ProcessSet, global_process_set
from ringcore.adapter import ReduceOp

from horovod.torch.compression import Compression

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(  # noqa: N802 - Horovod's name for it
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = ring.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`ringcore_torch.DistributedOptimizer`; `num_groups` is an old name of `groups`, and 0 means no groups.

    Raises:
        ValueError: An argument that does not fit the others.
    """
    if num_groups and groups is None:
        groups = num_groups
    if gradient_predivide_factor != 1.0 and op is not ring.Average:
        raise ValueError("gradient_predivide_factor works with op=Average only")
    return ring.DistributedOptimizer(
        optimizer, named_parameters, compression=compression, backward_passes_per_step=backward_passes_per_step, op=op,
        gradient_predivide_factor=gradient_predivide_factor, groups=groups or None, sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )  # fmt: skip
