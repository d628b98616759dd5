"""Keras on TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf
from ringcore import Average, Min, Sum
from ringcore.adapter import ProcessSet
from ringcore_tensorflow import Compression, allreduce
from ringcore_tensorflow import allgather as gathered
from ringcore_tensorflow import reducescatter as scattered
from ringcore_tensorflow.gradients import Reduction, divided
from ringcore_tensorflow.host import on_host
from ringcore_tensorflow.naming import once_in_graph

from ringcore_keras.options import Options

__all__ = [
    "all_true",
    "allgather",
    "allreduce_sum",
    "divided",
    "on_host",
    "reduce_gradients",
    "reducescatter",
    "without_gradients",
]


def reduce_gradients(gradients: Sequence[Any], names: Sequence[str], options: Options) -> list[Any]:
    """The gradients of all ranks."""
    chosen = options.compression
    reduction = Reduction(
        name=options.name, op=options.op,
        compression=getattr(Compression, chosen) if isinstance(chosen, str) else chosen,
        gradient_predivide_factor=options.gradient_predivide_factor, groups=options.groups,
        sparse_as_dense=options.sparse_as_dense, process_set=options.process_set,
    )  # fmt: skip
    return reduction.apply(gradients, names)


def allreduce_sum(tensor: Any, name: str, process_set: ProcessSet) -> Any:
    """The sum over the ranks of a process set."""
    return allreduce(tensor, op=Sum, name=once_in_graph(name), process_set=process_set)


def reducescatter(row: Any, name: str, process_set: ProcessSet) -> Any:
    """This rank's share of the average of all ranks' rows."""
    return scattered(row, op=Average, name=once_in_graph(name), process_set=process_set)


def allgather(share: Any, name: str, process_set: ProcessSet) -> Any:
    """All ranks' shares, in a row."""
    return gathered(share, name=once_in_graph(name), process_set=process_set)


def all_true(flag: Any, name: str, process_set: ProcessSet) -> Any:
    """Whether a boolean scalar is true on all ranks."""
    return tf.cast(
        allreduce(tf.cast(flag, tf.uint8), op=Min, name=once_in_graph(name), process_set=process_set), tf.bool
    )


def without_gradients() -> AbstractContextManager[Any]:
    """Nothing is recorded in here, as nobody has a tape."""
    return nullcontext()
