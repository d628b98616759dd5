"""Data that a job of its own prepares for the training, by TensorFlow's data service.

ringrun -np 4 python -m ringcore_tensorflow.data_service.compute_worker config.json

In the training: `TfDataServiceConfig.read("config.json", wait_for_file_creation=True)`, and `tf_data_service` or
`send_to_data_service`.
"""

from ringcore_tensorflow.data_service.config import TfDataServiceConfig
from ringcore_tensorflow.data_service.service import compute_worker_fn, send_to_data_service, tf_data_service

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]
