"""The state of a training process of Keras: a model, its optimizer, and objects."""

from __future__ import annotations

from typing import Any

import ringcore
import ringcore_keras
from ringcore import InvalidArgument

from horovod.common.elastic import VariablesState

__all__ = ["KerasState"]


class KerasState(VariablesState):
    """Keeps the weights of a model and the variables of its optimizer, and objects as they are.

    Args:
        model: Of Keras; it is built.
        optimizer: Without one, the one that the model was compiled with.
        attributes: By name; they become attributes of the state.

    Raises:
        InvalidArgument: The model has no weights yet.
    """

    def __init__(self, model: Any, optimizer: Any = None, **attributes: Any) -> None:
        if not model.built:
            raise InvalidArgument("the model has no weights yet; call model.build(input_shape) first")
        self.model = model
        self.optimizer = optimizer or model.optimizer
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__(
            self._weights_and_slots, ringcore_keras.broadcast_variables, ringcore.broadcast_object, ringcore.rank,
            **attributes,
        )  # fmt: skip

    def _weights_and_slots(self) -> list[Any]:
        return [*self.model.weights, *(self.optimizer.variables if self.optimizer is not None else ())]
