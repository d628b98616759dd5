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
from ringcore_torch import Adasum, Average, Max, Min, Product, Sum, join

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


def _divided(tensor: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    """Horovod's average: of integers rounded down."""
    return tensor.div_(process_set.size(), rounding_mode=None if tensor.is_floating_point() else "floor")


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype is not torch.bool


def poll(handle: Any) -> bool:
    """Whether an operation has ended, so that `synchronize` will not block."""
    return bool(handle.done())


def synchronize(handle: Any) -> Any:
    """Wait for an operation and return its result."""
    return handle.synchronize()


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
    if chosen is Average and any(map(_is_integer, given)):
        return _DividingHandle(call(tensors, op=Sum, **options), process_set)
    return call(tensors, op=chosen, **options)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Start an allreduce into a new tensor."""
    return _start(ring.allreduce_async, tensor, average, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Start an allreduce in place."""
    return _start(ring.allreduce_async_, tensor, average, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Start an allreduce of several tensors, all or none, into new ones."""
    return _start(
        ring.grouped_allreduce_async, tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Start an allreduce of several tensors in place, all or none."""
    return _start(
        ring.grouped_allreduce_async_, tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The reduced tensor, differentiable."""
    if not tensor.is_floating_point():
        result: torch.Tensor = synchronize(
            allreduce_async(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
        )
        return result
    return ring.allreduce(
        tensor, op=_op(average, op), name=name, compression=compression, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set,
    )  # fmt: skip


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The tensor, reduced in place."""
    synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))
    return tensor


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """The reduced tensors, differentiable; all or none."""
    if not all(tensor.is_floating_point() for tensor in tensors):
        results: list[torch.Tensor] = synchronize(
            grouped_allreduce_async(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
        )
        return results
    return ring.grouped_allreduce(
        tensors, op=_op(average, op), name=name, compression=compression, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set,
    )  # fmt: skip


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """The tensors, reduced in place, all or none."""
    synchronize(grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set))
    return list(tensors)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: ReduceOp | None, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start the reduction of a sparse tensor; returns a function that waits for it."""
    return ring.sparse_allreduce_async(tensor, op=_op(None, op), name=name, process_set=process_set)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """All ranks' rows, differentiable."""
    return ring.allgather(tensor, name=name, process_set=process_set)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start an allgather."""
    return ring.allgather_async(tensor, name=name, process_set=process_set)


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """All ranks' rows of several tensors, all or none."""
    return ring.grouped_allgather(tensors, name=name, process_set=process_set)


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a grouped allgather."""
    return ring.grouped_allgather_async(tensors, name=name, process_set=process_set)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """A new tensor with the root's values, differentiable."""
    return ring.broadcast(tensor, root_rank, name=name, process_set=process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The tensor, with the root's values."""
    return ring.broadcast_(tensor, root_rank, name=name, process_set=process_set)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a broadcast into a new tensor."""
    return ring.broadcast_async(tensor, root_rank, name=name, process_set=process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a broadcast in place."""
    return ring.broadcast_async_(tensor, root_rank, name=name, process_set=process_set)


def alltoall(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The rows for this rank; with `splits` a pair, with how many came from each rank."""
    return ring.alltoall(tensor, splits, name=name, process_set=process_set)


def alltoall_async(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start an alltoall."""
    return ring.alltoall_async(tensor, splits, name=name, process_set=process_set)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's share of the reduced rows, differentiable."""
    compressed, context = compression.compress(tensor)
    share = ring.reducescatter(
        compressed, op=op, name=name, process_set=process_set, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )  # fmt: skip
    result: torch.Tensor = compression.decompress(share, context)
    return result


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start a reducescatter."""
    return ring.reducescatter_async(
        tensor, op=op, name=name, process_set=process_set, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )  # fmt: skip


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """This rank's shares of several tensors, all or none."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    shares = ring.grouped_reducescatter(
        [tensor for tensor, _ in pairs], op=op, name=name, process_set=process_set, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )  # fmt: skip
    return [compression.decompress(share, context) for share, (_, context) in zip(shares, pairs, strict=True)]


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start a grouped reducescatter."""
    return ring.grouped_reducescatter_async(
        tensors, op=op, name=name, process_set=process_set, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )  # fmt: skip


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it."""
    ring.barrier(process_set=process_set)
