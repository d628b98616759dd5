"""Horovod's names for `ringcore_spark.lightning`."""

from __future__ import annotations

import ringcore_spark.lightning
from ringcore_spark.lightning import LightningModel as TorchModel
from ringcore_spark.ml.params import with_params

from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.estimator import WITHOUT_EFFECT, HorovodParams

__all__ = ["SparkBackend", "TorchEstimator", "TorchModel"]


@with_params(WITHOUT_EFFECT)
class TorchEstimator(HorovodParams, ringcore_spark.lightning.LightningEstimator):
    """See `ringcore_spark.lightning.LightningEstimator`."""
