"""Horovod's arithmetic where it is not ringcore's: of integers, of rows, and in gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ringcore_tensorflow as ring
import tensorflow as tf
from ringcore import ProcessSet
from ringcore.adapter import ReduceOp
from ringcore_tensorflow import Average, Sum


def _scaled(tensor: tf.Tensor, factor: float) -> tf.Tensor:
    """A tensor times a factor; integers are multiplied as float64 and cut towards zero."""
    if factor == 1.0:
        return tensor
    if not tensor.dtype.is_integer:
        return tensor * tf.cast(factor, tensor.dtype)
    return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)


def reduced(
    call: Callable[..., list[tf.Tensor]],
    tensors: list[tf.Tensor],
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    **options: Any,
) -> list[tf.Tensor]:
    """Run a reduction of ringcore, which leaves factors of integers to its caller, and has no averages of them."""
    is_sum = op is not Average and prescale_factor == postscale_factor == 1.0
    if is_sum or not any(tensor.dtype.is_integer for tensor in tensors):
        return call(
            tensors, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, **options,
        )  # fmt: skip
    if op is Average:
        op, postscale_factor = Sum, postscale_factor / process_set.size()
    sent = [_scaled(tensor, prescale_factor) for tensor in tensors]
    return [_scaled(result, postscale_factor) for result in call(sent, op=op, process_set=process_set, **options)]


def reduced_rows(
    slices: tf.IndexedSlices, op: ReduceOp, factors: tuple[float, float], name: str | None, process_set: ProcessSet
) -> tf.IndexedSlices:
    """Reduce rows of a tensor.

    Raises:
        NotImplementedError: An operation that is neither a sum nor an average, or factors.
    """
    if op not in (Average, Sum):
        raise NotImplementedError(f"only Sum and Average are supported with tf.IndexedSlices, not {op.name}")
    if factors != (1.0, 1.0):
        raise NotImplementedError(f"prescale_factor and postscale_factor are {factors}: not with tf.IndexedSlices")
    total = ring.allreduce(slices, op=Sum, name=name, process_set=process_set)
    values = total.values if op is Sum else total.values / tf.cast(process_set.size(), total.values.dtype)
    return tf.IndexedSlices(values, total.indices, total.dense_shape)


def with_gradient_times(factor: float, tensor: tf.Tensor) -> tf.Tensor:
    """The same tensor, whose gradient is multiplied."""
    if not (tensor.dtype.is_floating or tensor.dtype.is_complex) or factor == 1.0:
        return tensor

    def same(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return tf.identity(value), lambda gradient: gradient * tf.cast(factor, gradient.dtype)

    result: tf.Tensor = tf.custom_gradient(same)(tensor)
    return result
