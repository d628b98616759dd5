"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

import re
from typing import Any

import keras
from keras import ops
from ringcore.adapter import ProcessSet, global_process_set

from ringcore_keras.backends import backend


@keras.saving.register_keras_serializable(package="ringcore_keras")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """`keras.layers.BatchNormalization` whose mean and variance in training are those of all ranks' batches together.

    Ranks may have batches of different size. The mean is found first and the variance around it: no digits are lost to
    cancellation.

    Args:
        process_set: The ranks whose batches belong together. It is not saved: a loaded layer belongs to all ranks.
        options: Of `keras.layers.BatchNormalization`.
    """

    def __init__(self, *, process_set: ProcessSet = global_process_set, **options: Any) -> None:
        super().__init__(**options)
        self._process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        axes = list(self._reduction_axes)
        wide = (
            ops.cast(inputs, "float32")
            if keras.backend.standardize_dtype(inputs.dtype) in ("float16", "bfloat16")
            else inputs
        )
        weights = ops.ones_like(wide)
        if mask is not None:
            weights = weights * ops.cast(ops.expand_dims(mask, -1), wide.dtype)
        sums = self._sum(ops.stack([ops.sum(wide * weights, axes), ops.sum(weights, axes)]), "mean")
        count = ops.maximum(ops.stop_gradient(sums[1]), 1)
        mean = sums[0] / count
        shape = [1] * len(inputs.shape)
        shape[self.axis] = -1
        centred = (wide - ops.reshape(mean, shape)) * weights
        variance = self._sum(ops.sum(centred * centred, axes), "variance") / count
        return ops.cast(mean, inputs.dtype), ops.cast(variance, inputs.dtype)

    def _sum(self, tensor: Any, what: str) -> Any:
        # Without the numbers that Keras gives to models and layers: a rank may have made more of them than others.
        path = re.sub("_[0-9]+", "", self.path)
        return backend.allreduce_sum(tensor, f"SyncBatchNormalization.{path}.{what}", self._process_set)
