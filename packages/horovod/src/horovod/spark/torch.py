"""Horovod's names for `ringcore_spark.torch`."""

from __future__ import annotations

import ringcore_spark.torch
from ringcore_spark.ml.params import with_params
from ringcore_spark.torch import TorchModel

from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.estimator import WITHOUT_EFFECT, HorovodParams

__all__ = ["SparkBackend", "TorchEstimator", "TorchModel"]


@with_params(WITHOUT_EFFECT)
class TorchEstimator(HorovodParams, ringcore_spark.torch.TorchEstimator):
    """See `ringcore_spark.torch.TorchEstimator`."""
