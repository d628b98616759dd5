"""Batch normalisation over all ranks, with Horovod's signature."""

from __future__ import annotations

from typing import Any

import keras
import ringcore_tensorflow as ring

__all__ = ["SyncBatchNormalization"]


@keras.saving.register_keras_serializable(package="horovod.tensorflow")
class SyncBatchNormalization(ring.SyncBatchNormalization):
    """`ringcore_tensorflow.SyncBatchNormalization`.

    Args:
        fused: False; Keras 3 chooses for itself.
        options: Of `keras.layers.BatchNormalization`.

    Raises:
        ValueError: `fused` is True or None.
    """

    def __init__(self, fused: bool | None = False, **options: Any) -> None:
        if fused is not False:
            raise ValueError("SyncBatchNormalization does not support fused=True")
        super().__init__(**options)
