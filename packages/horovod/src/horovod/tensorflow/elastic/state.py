"""The state of a training process of TensorFlow: variables, or a Keras model, and objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ringcore
import ringcore_tensorflow as ring
import tensorflow as tf
from ringcore import InvalidArgument

from horovod.common.elastic import VariablesState
from horovod.keras.elastic.state import KerasState

__all__ = ["TensorFlowKerasState", "TensorFlowState"]


class TensorFlowState(VariablesState):
    """Keeps variables, and objects as they are.

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
        super().__init__(
            lambda: self.variables, ring.broadcast_variables, ringcore.broadcast_object, ringcore.rank, **attributes
        )


class TensorFlowKerasState(KerasState):
    """`horovod.keras.elastic.KerasState`.

    Args:
        model: Of Keras; it is built.
        optimizer: Without one, the one that the model was compiled with.
        backend: Unused; TensorFlow 1 had sessions there.
        attributes: By name; they become attributes of the state.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **attributes: Any) -> None:
        del backend
        super().__init__(model, optimizer, **attributes)
