"""Horovod's names for `ringcore_spark.lightning`."""

from __future__ import annotations

import ringcore_spark.lightning
from ringcore_spark.lightning import LightningModel as TorchModel

from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.estimator import HorovodParams

__all__ = ["SparkBackend", "TorchEstimator", "TorchModel"]


class TorchEstimator(HorovodParams, ringcore_spark.lightning.LightningEstimator):
    """See `ringcore_spark.lightning.LightningEstimator`."""
