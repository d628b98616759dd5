"""Elastic training of TensorFlow, see `ringcore.elastic`: a state of variables, samplers and objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from ringcore import InvalidArgument
from ringcore.elastic import ElasticSampler, HostsUpdatedInterrupt, ObjectState, State, VariablesState, run

from ringcore_tensorflow.variables import broadcast_variables

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TensorFlowState", "run"]


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
