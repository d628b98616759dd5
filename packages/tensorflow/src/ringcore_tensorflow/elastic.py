"""Elastic training of TensorFlow, see `ringcore.elastic`: a state of variables, samplers and objects."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from ringcore import InvalidArgument
from ringcore.elastic import (
    ElasticSampler,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    VariablesState,
    run,
)

from ringcore_tensorflow.variables import broadcast_variables

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowState",
    "run",
]


def __getattr__(name: str) -> Any:
    # Horovod has it here. It is of a distribution that needs this one.
    if name == "TensorFlowKerasState":
        try:
            return importlib.import_module("ringcore_keras.elastic").TensorFlowKerasState
        except ModuleNotFoundError as error:
            raise AttributeError(f"{name} is in ringcore_keras.elastic. Remedy: pip install ringcore-keras") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class TensorFlowState(VariablesState):
    """Keeps variables, samplers, and objects as they are.

    Args:
        variables: Of TensorFlow, or of Keras.
        session: None; there are no states of sessions.
        attributes: By name; they become attributes of the state.

    Raises:
        InvalidArgument: Not in eager mode, or without variables.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **attributes: Any) -> None:
        if variables is None or session is not None or not tf.executing_eagerly():
            raise InvalidArgument("TensorFlowState takes variables, and works in eager mode; in a session use a Saver")
        self.variables = list(variables)
        super().__init__(lambda: self.variables, broadcast_variables, **attributes)
