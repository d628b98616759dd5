"""Horovod's operations on MXNet's arrays, with its signatures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
import numpy as np
import ringcore_mxnet as ring
from ringcore import (
    InvalidArgument,
    ProcessSet,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
)
from ringcore.adapter import ReduceOp
from ringcore_mxnet import Adasum, Average, Max, Min, Product, Sum, barrier

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
from horovod.common.timeline import start_timeline, stop_timeline
from horovod.mxnet._arithmetic import op_of, reduced, written_to

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
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
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def allreduce(
    tensor: Any, average: bool | None = None, name: str | None = None, priority: int = 0, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set, op: ReduceOp | None = None,
) -> Any:  # fmt: skip
    """`ringcore_mxnet.allreduce`; `average` is an older form of `op`."""
    call = functools.partial(_alone, ring.allreduce, name=name, priority=priority, process_set=process_set)
    return reduced(call, [tensor], op_of(average, op), prescale_factor, postscale_factor, process_set)[0]


def allreduce_(
    tensor: Any, average: bool | None = None, name: str | None = None, priority: int = 0, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set, op: ReduceOp | None = None,
) -> Any:  # fmt: skip
    """`ringcore_mxnet.allreduce_`; `average` is an older form of `op`."""
    call = functools.partial(_alone, ring.allreduce_, name=name, priority=priority, process_set=process_set)
    return written_to(
        [tensor], reduced(call, [tensor], op_of(average, op), prescale_factor, postscale_factor, process_set)
    )[0]


def grouped_allreduce(
    tensors: Sequence[Any], average: bool | None = None, name: str | None = None, priority: int = 0,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> Sequence[Any]:  # fmt: skip
    """`ringcore_mxnet.grouped_allreduce`; `average` is an older form of `op`."""
    call = functools.partial(ring.grouped_allreduce, name=name, priority=priority, process_set=process_set)
    return reduced(call, tensors, op_of(average, op), prescale_factor, postscale_factor, process_set)


def grouped_allreduce_(
    tensors: Sequence[Any], average: bool | None = None, name: str | None = None, priority: int = 0,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> Sequence[Any]:  # fmt: skip
    """`ringcore_mxnet.grouped_allreduce_`; `average` is an older form of `op`."""
    call = functools.partial(ring.grouped_allreduce_, name=name, priority=priority, process_set=process_set)
    return written_to(
        tensors, reduced(call, tensors, op_of(average, op), prescale_factor, postscale_factor, process_set)
    )


def _alone(verb: Callable[..., Any], tensors: Sequence[Any], **options: Any) -> list[Any]:
    """A verb for one tensor, as those for groups."""
    (tensor,) = tensors
    return [verb(tensor, **options)]


# Those below wait, as Horovod's do: what does not fit is raised by the call, and not by whoever uses the result.


def _waited(results: Sequence[Any]) -> Sequence[Any]:
    for result in results:
        result.wait_to_read()
    return results


def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """`ringcore_mxnet.allgather`."""
    return _waited([ring.allgather(tensor, name=name, priority=priority, process_set=process_set)])[0]


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Sequence[Any]:
    """`ringcore_mxnet.grouped_allgather`."""
    return _waited(ring.grouped_allgather(tensors, name=name, priority=priority, process_set=process_set))


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """`ringcore_mxnet.broadcast`."""
    return ring.broadcast(tensor, root_rank, name=name, priority=priority, process_set=process_set)


def broadcast_(
    tensor: Any, root_rank: int, name: str | None = None, priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """`ringcore_mxnet.broadcast_`."""
    return ring.broadcast_(tensor, root_rank, name=name, priority=priority, process_set=process_set)


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """`ringcore_mxnet.alltoall`; an array of splits has to be of 32-bit integers."""
    if isinstance(splits, mx.nd.NDArray) and splits.dtype != np.int32:
        raise InvalidArgument(f"alltoall: the splits have dtype {np.dtype(splits.dtype)}; use splits.astype('int32')")
    result = ring.alltoall(tensor, splits, name=name, priority=priority, process_set=process_set)
    _waited([result] if splits is None else result)
    return result


def reducescatter(
    tensor: Any, op: ReduceOp = Average, name: str | None = None, priority: int = 0,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Any:  # fmt: skip
    """`ringcore_mxnet.reducescatter`."""
    call = functools.partial(_alone, ring.reducescatter, name=name, priority=priority, process_set=process_set)
    return _waited(reduced(call, [tensor], op, prescale_factor, postscale_factor, process_set))[0]


def grouped_reducescatter(
    tensors: Sequence[Any], op: ReduceOp = Average, name: str | None = None, priority: int = 0,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Sequence[Any]:  # fmt: skip
    """`ringcore_mxnet.grouped_reducescatter`."""
    call = functools.partial(ring.grouped_reducescatter, name=name, priority=priority, process_set=process_set)
    return _waited(reduced(call, tensors, op, prescale_factor, postscale_factor, process_set))


def join(device: int = -1) -> int:  # noqa: ARG001 - for scripts that pass it
    """Take part in the others' allreduces with zeros until all ranks have called it; returns the last to join."""
    return ring.join()
