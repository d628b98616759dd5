"""Gradients of embeddings: only the rows that some rank has are sent."""

from __future__ import annotations

import tensorflow as tf
from ringcore import Average, Sum
from ringcore.adapter import ProcessSet, ReduceOp, check_rows, global_process_set

from ringcore_tensorflow import _operations as dense
from ringcore_tensorflow._graph import as_written
from ringcore_tensorflow.naming import text_of

# Rows of all ranks together, as a part of the tensor's rows, from which on the whole tensor is sent: an allreduce
# moves it about twice, an allgather moves every rank's rows to every rank.
DENSITY = 0.5


def _combined(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Each index once, with the sum of its rows."""
    unique, positions = tf.unique(indices)
    wide = tf.cast(values, tf.float32) if values.dtype in (tf.float16, tf.bfloat16) else values
    return tf.cast(tf.math.unsorted_segment_sum(wide, positions, tf.size(unique)), values.dtype), unique


@as_written
def allreduce(
    slices: tf.IndexedSlices,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tf.IndexedSlices:
    """Reduce rows of a tensor over all ranks, which may have different rows, and different numbers of them.

    Rows that a rank has several times are added up first, so that it never sends more than the tensor has. Where the
    ranks together have more than half of the rows, the tensor is sent as a whole, which all ranks decide alike.

    The values are sent as they are: compression is for dense tensors.

    Args:
        slices: Values, indices, and for that decision a `dense_shape`.
        op: `Average` or `Sum`.
        name: Identifies the tensor on all ranks.
        factor: Multiplied into the result.
        process_set: The ranks that take part.

    Returns:
        Slices in which each index stands once.

    Raises:
        InvalidArgument: Another `op`, or an average or a factor of integers.
    """
    check_rows("allreduce of tf.IndexedSlices", slices.values.dtype.name, op, factor)
    base = text_of(name, "sparse_allreduce", process_set)
    values, indices = _combined(slices.values, slices.indices)
    scale = tf.cast(factor, values.dtype)
    if op is Average:
        scale = scale / tf.cast(dense.size_op(process_set), values.dtype)

    def gathered() -> tuple[tf.Tensor, tf.Tensor]:
        parts = dense.grouped_allgather([values, indices], name=f"{base}.rows", process_set=process_set)
        return _combined(parts[0], parts[1])

    if slices.dense_shape is None:
        total, rows = gathered()
        return tf.IndexedSlices(total * scale, rows, None)
    shape = tf.cast(slices.dense_shape, indices.dtype)

    def whole() -> tuple[tf.Tensor, tf.Tensor]:
        full = tf.scatter_nd(indices[:, tf.newaxis], values, shape)
        reduced = dense.allreduce(full, op=Sum, name=f"{base}.whole", process_set=process_set)
        return reduced, tf.range(shape[0])

    count = dense.allreduce(tf.cast(tf.size(indices), tf.int64), op=Sum, name=f"{base}.count", process_set=process_set)
    is_dense = tf.cast(count, tf.float64) > DENSITY * tf.cast(shape[0], tf.float64)
    total, rows = tf.cond(is_dense, whole, gathered)
    return tf.IndexedSlices(total * scale, rows, slices.dense_shape)
