"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops
from ringcore.adapter import ProcessSet, batch_statistics, global_process_set

from ringcore_keras.backends import backend


@keras.saving.register_keras_serializable(package="ringcore_keras")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """`keras.layers.BatchNormalization` whose mean and variance in training are those of all ranks' batches together.

    Ranks may have batches of different size.

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
        weights = None if mask is None else ops.cast(ops.expand_dims(mask, -1), wide.dtype)

        def sum_of(values: Any) -> Any:
            return ops.sum(values if weights is None else values * weights, axes)

        shape = [1] * len(inputs.shape)
        shape[self.axis] = -1
        found = batch_statistics(
            wide, sum_of(ops.ones_like(wide)), sum_of=sum_of, over_ranks=self._over_ranks,
            spread=lambda x: ops.reshape(x, shape), constant=lambda count: ops.maximum(ops.stop_gradient(count), 1),
        )  # fmt: skip
        return ops.cast(found.mean, inputs.dtype), ops.cast(found.variance, inputs.dtype)

    def _over_ranks(self, parts: Sequence[Any], what: str) -> Sequence[Any]:
        # Without the numbers that Keras gives to models and layers: a rank may have made more of them than others.
        path = re.sub("_[0-9]+", "", self.path)
        name = f"SyncBatchNormalization.{path}.{what}"
        return list(ops.unstack(backend.allreduce_sum(ops.stack(list(parts)), name, self._process_set), len(parts)))
