"""Horovod's name for what `ringcore_tensorflow.data_service` has."""

from ringcore_tensorflow.data_service import (
    TfDataServiceConfig,
    compute_worker_fn,
    send_to_data_service,
    tf_data_service,
)

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]
