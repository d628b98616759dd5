"""Horovod's name for what `ringcore_tensorflow.data_service` has."""

from ringcore_tensorflow.data_service.config import TfDataServiceConfig

__all__ = ["TfDataServiceConfig"]
