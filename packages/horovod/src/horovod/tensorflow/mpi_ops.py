"""Horovod's operations on tensors of TensorFlow, with its signatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ringcore_tensorflow as ring
import tensorflow as tf
from ringcore import (
    InvalidArgument,
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from ringcore.adapter import ReduceOp, reduce_compressed
from ringcore_tensorflow import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)

from horovod.common import basics as _basics
from horovod.common.basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from horovod.common.basics import init as _init
from horovod.common.operations import chosen_op
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, known, remove_process_set
from horovod.common.timeline import start_timeline, stop_timeline
from horovod.keras import keras_2
from horovod.tensorflow.arithmetic import reduced, reduced_rows, with_gradient_times
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.errors import verb
from horovod.tensorflow.util import _executing_eagerly

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "_basics",
    "_executing_eagerly",
    "add_process_set",
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
    "global_process_set",
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
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def init(comm: Any = None, process_sets: Any = None) -> None:
    """`horovod.init`; and Keras 3 takes lines of Keras 2, see `horovod.keras.keras_2`."""
    keras_2.install()
    _init(comm, process_sets)


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
    """`ringcore_tensorflow.allreduce`, with Horovod's arithmetic of integers."""
    (result,) = grouped_allreduce(
        [tensor], average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor,
        process_set, ignore_name_scope, name,
    )  # fmt: skip
    return result


@verb
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """`ringcore_tensorflow.grouped_allreduce`, with Horovod's arithmetic of integers; rows are reduced one by one."""
    del device_dense, device_sparse, ignore_name_scope
    chosen, members = chosen_op(op, average), known(process_set)
    results: list[Any] = [None] * len(tensors)
    dense = [i for i, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    for i in set(range(len(tensors))).difference(dense):
        rows_name = name if name is None or len(tensors) == 1 else f"{name}.{i}"
        results[i] = reduced_rows(tensors[i], chosen, (prescale_factor, postscale_factor), rows_name, members)
    whole = reduced(
        ring.grouped_allreduce, [tf.convert_to_tensor(tensors[i]) for i in dense], chosen, prescale_factor,
        postscale_factor, members, name=name, compression=compression,
    )  # fmt: skip
    for i, result in zip(dense, whole, strict=True):
        results[i] = result
    return results


def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """`ringcore_tensorflow.allgather`; its gradient is an average."""
    (result,) = grouped_allgather([tensor], name, ignore_name_scope, process_set)
    return result


@verb
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:  # fmt: skip
    """`ringcore_tensorflow.grouped_allgather`; its gradient is an average."""
    del ignore_name_scope
    factor = 1.0 / known(process_set).size()
    sent = [with_gradient_times(factor, tf.convert_to_tensor(tensor)) for tensor in tensors]
    return ring.grouped_allgather(sent, name=name, process_set=process_set)


@verb
def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """`ringcore_tensorflow.broadcast`; its gradient is an average."""
    del ignore_name_scope
    sent = with_gradient_times(1.0 / known(process_set).size(), tf.convert_to_tensor(tensor))
    return ring.broadcast(sent, root_rank, name=name, process_set=process_set)


@verb
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Give variables the root's values, and return these."""
    members = known(process_set)
    given = [
        ring.broadcast_(variable, root_rank, name=None if name is None else f"{name}.{i}", process_set=members)
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
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """`ringcore_tensorflow.reducescatter`, with Horovod's arithmetic of integers and in gradients."""
    del ignore_name_scope
    (result,) = grouped_reducescatter(
        [tensor], device_dense, compression, op, process_set, prescale_factor, postscale_factor, name
    )
    return result


@verb
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
    """`ringcore_tensorflow.grouped_reducescatter`, with Horovod's arithmetic of integers and in gradients.

    Raises:
        InvalidArgument: A tensor has no rows.
    """
    del device_dense
    kept = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if any(tensor.shape.rank == 0 for tensor in kept):
        raise InvalidArgument("reducescatter: a scalar has no rows that ranks could share; reshape it to [1]")
    ranks = known(process_set).size()

    def reduce(sent: list[Any]) -> list[Any]:
        return reduced(ring.grouped_reducescatter, sent, op, prescale_factor, postscale_factor, process_set, name=name)

    return reduce_compressed(compression, [with_gradient_times(ranks, tensor) for tensor in kept], reduce)


@verb
def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """`ringcore_tensorflow.alltoall`."""
    del ignore_name_scope
    return ring.alltoall(tensor, splits, name=name, process_set=known(process_set))


@verb
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it; in a graph, an op that ends then."""
    ring.barrier(process_set=known(process_set))


@verb
def join() -> int:
    """Take part in the others' allreduces with zeros until all ranks have called it; returns the last to do so."""
    return ring.join()


# ---- Where this process stands, looked up when the graph runs ----


def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's number in the job."""
    return tf.identity(ring.rank_op(), name)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of a process set, whether or not this process is one of them."""
    if process_set_id == 0:
        return tf.identity(ring.size_op(), name)
    return tf.constant(len(_basics._get_process_set_ids_and_ranks()[process_set_id]), name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's number among those of its host."""
    return tf.identity(ring.local_rank_op(), name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of the job's processes on this host."""
    return tf.identity(ring.local_size_op(), name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 where this process is a member of a process set, else 0."""
    return tf.identity(ring.process_set_included_op(process_set_id), name)
