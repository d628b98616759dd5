"""Horovod's operations on tensors, with its signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ringcore_torch as ring
import torch
from ringcore import (
    ProcessSet,
    cross_rank,
    cross_size,
    global_process_set,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from ringcore.adapter import Handle, ReduceOp
from ringcore_torch import Adasum, Average, Max, Min, Product, Sum, join, poll, synchronize

from horovod.common.basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from horovod.torch.compression import Compression

__all__ = [
    "Adasum",
    "Average",
    "Handle",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

Tensors = Sequence[torch.Tensor]


def _op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """The operation by either of the arguments that name it."""
    if average is not None and op is not None:
        raise ValueError("average= and op= say the same; pass op=")
    if op is not None:
        return op
    return Sum if average is False else Average


def _of_integers(
    call: Callable[..., Any], tensors: Tensors, average: bool | None, op: ReduceOp | None
) -> ReduceOp | None:
    """Sum where Horovod averages integers, which ringcore refuses; None where nothing is special."""
    is_average = _op(average, op) is Average
    return Sum if is_average and not any(t.is_floating_point() for t in tensors) and call is not None else None


def _divided(tensor: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    """Horovod's average of integers: rounded down."""
    return tensor.div_(process_set.size(), rounding_mode="floor")


class _DividingHandle:
    """A sum of integers that becomes Horovod's average when it is synchronised."""

    def __init__(self, handle: Handle, process_set: ProcessSet) -> None:
        self._handle = handle
        self._process_set = process_set

    def done(self) -> bool:
        """Whether it has ended."""
        return self._handle.done()

    def synchronize(self) -> Any:
        """Wait for the result."""
        result = self._handle.synchronize()
        if isinstance(result, torch.Tensor):
            return _divided(result, self._process_set)
        return [_divided(tensor, self._process_set) for tensor in result]


def _start(
    call: Callable[..., Handle],
    tensors: Any,
    average: bool | None,
    name: str | None,
    op: ReduceOp | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> Any:
    """Start an allreduce of one tensor or of several."""
    given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    chosen = _op(average, op)
    options: dict[str, Any] = {
        "name": name, "prescale_factor": prescale_factor, "postscale_factor": postscale_factor,
        "process_set": process_set,
    }  # fmt: skip
    if chosen is Average and given and not any(tensor.is_floating_point() for tensor in given):
        return _DividingHandle(call(tensors, op=Sum, **options), process_set)
    return call(tensors, op=chosen, **options)
