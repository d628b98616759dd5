"""Elastic training: `ringcore_tensorflow.elastic` and `ringcore_keras.elastic` under Horovod's name."""

from ringcore_keras.elastic import TensorFlowKerasState
from ringcore_tensorflow.elastic import TensorFlowState, run

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]
