"""Horovod's names for `ringcore_spark.keras`."""

from __future__ import annotations

from typing import Any

import ringcore_spark.keras
from ringcore_spark.keras import KerasModel
from ringcore_spark.ml.params import with_params

from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.estimator import WITHOUT_EFFECT, HorovodParams

__all__ = ["KerasEstimator", "KerasModel", "SparkBackend"]


@with_params(WITHOUT_EFFECT)
class KerasEstimator(HorovodParams, ringcore_spark.keras.KerasEstimator):
    """See `ringcore_spark.keras.KerasEstimator`.

    Args:
        checkpoint_callback: One callback more.
        **params: Of it.
    """

    def __init__(self, *, checkpoint_callback: Any = None, **params: Any) -> None:
        if checkpoint_callback is not None:
            params["callbacks"] = [*(params.get("callbacks") or []), checkpoint_callback]
        super().__init__(**params)
