"""Horovod's operations on MXNet's arrays, with its signatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ringcore_mxnet as ring
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
from ringcore.adapter import ReduceOp
from ringcore_mxnet import Adasum, Average, Max, Min, Product, Sum, barrier, join

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

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
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
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def _op(average: bool) -> ReduceOp:
    return Average if average else Sum


def allreduce(
    tensor: Any, average: bool = True, name: str | None = None, priority: int = 0, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """`ringcore_mxnet.allreduce`."""
    return ring.allreduce(
        tensor, op=_op(average), name=name, priority=priority, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set,
    )  # fmt: skip


def allreduce_(
    tensor: Any, average: bool = True, name: str | None = None, priority: int = 0, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """`ringcore_mxnet.allreduce_`."""
    return ring.allreduce_(
        tensor, op=_op(average), name=name, priority=priority, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set,
    )  # fmt: skip


def grouped_allreduce(
    tensors: Sequence[Any], average: bool = True, name: str | None = None, priority: int = 0,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Any]:  # fmt: skip
    """`ringcore_mxnet.grouped_allreduce`."""
    return ring.grouped_allreduce(
        tensors, op=_op(average), name=name, priority=priority, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set,
    )  # fmt: skip


def grouped_allreduce_(
    tensors: Sequence[Any], average: bool = True, name: str | None = None, priority: int = 0,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Sequence[Any]:  # fmt: skip
    """`ringcore_mxnet.grouped_allreduce_`."""
    return ring.grouped_allreduce_(
        tensors, op=_op(average), name=name, priority=priority, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set,
    )  # fmt: skip


def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """`ringcore_mxnet.allgather`."""
    return ring.allgather(tensor, name=name, priority=priority, process_set=process_set)


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """`ringcore_mxnet.grouped_allgather`."""
    return ring.grouped_allgather(tensors, name=name, priority=priority, process_set=process_set)


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
    """`ringcore_mxnet.alltoall`."""
    return ring.alltoall(tensor, splits, name=name, priority=priority, process_set=process_set)


def reducescatter(
    tensor: Any, op: ReduceOp = Average, name: str | None = None, priority: int = 0, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """`ringcore_mxnet.reducescatter`."""
    return ring.reducescatter(
        tensor, op=op, name=name, priority=priority, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set,
    )  # fmt: skip


def grouped_reducescatter(
    tensors: Sequence[Any], op: ReduceOp = Average, name: str | None = None, priority: int = 0,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Any]:  # fmt: skip
    """`ringcore_mxnet.grouped_reducescatter`."""
    return ring.grouped_reducescatter(
        tensors, op=op, name=name, priority=priority, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set,
    )  # fmt: skip
