"""Horovod's names for `ringcore_spark.torch`."""

from __future__ import annotations

import ringcore_spark.torch
from ringcore_spark.torch import TorchModel

from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.estimator import HorovodParams

__all__ = ["SparkBackend", "TorchEstimator", "TorchModel"]


class TorchEstimator(HorovodParams, ringcore_spark.torch.TorchEstimator):
    """See `ringcore_spark.torch.TorchEstimator`."""
