"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from ringcore import Sum
from ringcore.adapter import ProcessSet, global_process_set

from ringcore_tensorflow._operations import allreduce


@keras.saving.register_keras_serializable(package="ringcore_tensorflow")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """`keras.layers.BatchNormalization` whose mean and variance in training are those of all ranks' batches together.

    Ranks may have batches of different size, also empty ones. The mean is found first and the variance around it: no
    digits are lost to cancellation.

    Args:
        process_set: The ranks whose batches belong together. It is not saved: a loaded layer belongs to all ranks.
        options: Of `keras.layers.BatchNormalization`.
    """

    def __init__(self, *, process_set: ProcessSet = global_process_set, **options: Any) -> None:
        super().__init__(**options)
        self._process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
        axes = self._reduction_axes
        wide = tf.cast(inputs, tf.float32) if inputs.dtype in (tf.float16, tf.bfloat16) else inputs
        weights = (
            tf.ones_like(wide)
            if mask is None
            else tf.broadcast_to(tf.cast(mask, wide.dtype)[..., None], tf.shape(wide))
        )
        sums = self._sum([tf.reduce_sum(wide * weights, axes), tf.reduce_sum(weights, axes)])
        count = tf.maximum(tf.stop_gradient(sums[1]), 1)
        mean = sums[0] / count
        shape = [1] * wide.shape.rank
        shape[self.axis] = -1
        centred = (wide - tf.reshape(mean, shape)) * weights
        (squares,) = self._sum([tf.reduce_sum(centred * centred, axes)])
        return tf.cast(mean, inputs.dtype), tf.cast(squares / count, inputs.dtype)

    def _sum(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        total = allreduce(tf.stack(tensors), op=Sum, process_set=self._process_set)
        return list(tf.unstack(total, num=len(tensors)))
