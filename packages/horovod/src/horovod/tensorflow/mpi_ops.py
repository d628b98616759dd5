"""Horovod's operations on tensors of TensorFlow, with its signatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ringcore_tensorflow as ring
import tensorflow as tf
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
from ringcore_tensorflow import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    barrier,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)

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
from horovod.tensorflow.compression import Compression

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
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
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def chosen_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """The operation that Horovod's two arguments for it name.

    Raises:
        ValueError: Both are given.
    """
    if average is not None and op is not None:
        raise ValueError("pass either op or average, which is an old name for op=Average and op=Sum")
    if average is not None:
        return Average if average else Sum
    return Average if op is None else op


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """`ringcore_tensorflow.allreduce`; averages of integers are rounded down, as Horovod has it."""
    del device_sparse
    if isinstance(tensor, tf.IndexedSlices):
        factor = prescale_factor * postscale_factor
        return ring.allreduce(
            tensor, op=chosen_op(op, average), name=name, prescale_factor=factor, process_set=process_set
        )
    (result,) = grouped_allreduce(
        [tensor], average, device_dense, compression, op, prescale_factor, postscale_factor, process_set,
        ignore_name_scope, name=name,
    )  # fmt: skip
    return result


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """`ringcore_tensorflow.grouped_allreduce`; averages of integers are rounded down, as Horovod has it."""
    del device_dense, ignore_name_scope
    kept = [tf.convert_to_tensor(tensor) for tensor in tensors]
    chosen = chosen_op(op, average)
    whole = chosen is Average and any(tensor.dtype.is_integer for tensor in kept)
    results = ring.grouped_allreduce(
        kept, op=Sum if whole else chosen, name=name, compression=compression, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set,
    )  # fmt: skip
    if not whole:
        return results
    return [
        total // tf.cast(size_op(process_set), total.dtype)
        if total.dtype.is_integer
        else total / tf.cast(size_op(process_set), total.dtype)
        for total in results
    ]


def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """`ringcore_tensorflow.allgather`."""
    del ignore_name_scope
    return ring.allgather(tensor, name=name, process_set=process_set)


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:  # fmt: skip
    """`ringcore_tensorflow.grouped_allgather`."""
    del ignore_name_scope
    return ring.grouped_allgather(tensors, name=name, process_set=process_set)


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """`ringcore_tensorflow.broadcast`."""
    del ignore_name_scope
    return ring.broadcast(tensor, root_rank, name=name, process_set=process_set)


def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Give variables the root's values, and return these."""
    given = [
        ring.broadcast_(variable, root_rank, name=None if name is None else f"{name}.{i}", process_set=process_set)
        for i, variable in enumerate(variables)
    ]
    return [tf.convert_to_tensor(variable) for variable in given]


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """`ringcore_tensorflow.reducescatter`."""
    (result,) = grouped_reducescatter(
        [tensor], device_dense, compression, op, process_set, prescale_factor, postscale_factor, name=name
    )
    return result


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """`ringcore_tensorflow.grouped_reducescatter`."""
    del device_dense
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    results = ring.grouped_reducescatter(
        [tensor for tensor, _ in pairs], op=op, name=name, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set,
    )  # fmt: skip
    return [compression.decompress(result, dtype) for result, (_, dtype) in zip(results, pairs, strict=True)]


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """`ringcore_tensorflow.alltoall`."""
    del ignore_name_scope
    return ring.alltoall(tensor, splits, name=name, process_set=process_set)
