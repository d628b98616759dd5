"""Elastic training of TensorFlow with a fixed number of ranks, see `horovod.common.elastic`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from ringcore import RingcoreError
from ringcore.adapter import as_ringcore_error

from horovod.common.elastic import run_fn
from horovod.tensorflow.elastic.state import TensorFlowKerasState, TensorFlowState

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function: it begins with the state of rank 0.

    Args:
        func: Takes a state, and whatever else. What its functions raise is raised as what ringcore raises.
    """

    @functools.wraps(func)
    def call(state: Any, *args: Any, **options: Any) -> Any:
        try:
            return func(state, *args, **options)
        except tf.errors.OpError as error:
            typed = as_ringcore_error(error)
            if typed is None or isinstance(error, RingcoreError):
                raise
            raise typed from error

    return run_fn(call)
