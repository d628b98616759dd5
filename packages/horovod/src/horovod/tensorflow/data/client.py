"""Horovod's name for what `ringcore_tensorflow.data_service` has."""

from ringcore_tensorflow.data_service.client import ComputeClient

__all__ = ["ComputeClient"]
