"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from ringcore import Sum
from ringcore.adapter import ProcessSet, batch_statistics, global_process_set

from ringcore_tensorflow._operations import allreduce


@keras.saving.register_keras_serializable(package="ringcore_tensorflow")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """`keras.layers.BatchNormalization` whose mean and variance in training are those of all ranks' batches together.

    Ranks may have batches of different size, also empty ones.

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
        weights = None if mask is None else tf.broadcast_to(tf.cast(mask, wide.dtype)[..., None], tf.shape(wide))

        def sum_of(values: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(values if weights is None else values * weights, axes)

        shape = [-1 if axis == self.axis % wide.shape.rank else 1 for axis in range(wide.shape.rank)]
        found = batch_statistics(
            wide, sum_of(tf.ones_like(wide)), sum_of=sum_of, over_ranks=self._over_ranks,
            spread=lambda x: tf.reshape(x, shape), constant=lambda count: tf.maximum(tf.stop_gradient(count), 1),
        )  # fmt: skip
        return tf.cast(found.mean, inputs.dtype), tf.cast(found.variance, inputs.dtype)

    def _over_ranks(self, parts: Sequence[tf.Tensor], _: str) -> Sequence[tf.Tensor]:
        total = allreduce(tf.stack(list(parts)), op=Sum, process_set=self._process_set)
        return list(tf.unstack(total, num=len(parts)))
