"""Horovod's name for `ringcore_spark.torch.SparkBackend`."""

from __future__ import annotations

from ringcore_spark.ml.backend import SparkBackend

__all__ = ["SparkBackend"]
