"""Elastic training of Keras models, see `ringcore.elastic`: a state of a model, and callbacks that keep it."""

from __future__ import annotations

from typing import Any

import keras
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

from ringcore_keras.variables import broadcast_variables, synchronize_state

__all__ = [
    "CommitStateCallback",
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(VariablesState):
    """Keeps the weights of a model and the variables of its optimizer, samplers, and objects as they are.

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
        super().__init__(self._weights_and_slots, broadcast_variables, **attributes)

    def _weights_and_slots(self) -> list[Any]:
        synchronize_state(self.model)
        return [*self.model.weights, *(self.optimizer.variables if self.optimizer is not None else ())]


class TensorFlowKerasState(KerasState):
    """The same.

    Args:
        model: Of Keras; it is built.
        optimizer: Without one, the one that the model was compiled with.
        backend: Unused; TensorFlow 1 had sessions there.
        attributes: By name; they become attributes of the state.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **attributes: Any) -> None:
        del backend
        super().__init__(model, optimizer, **attributes)


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves a state after so many batches, and at the end of each epoch.

    Args:
        state: To be saved.
        batches_per_commit: After how many.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self._state = state
        self._period = batches_per_commit
        self._batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Count anew, so that all ranks count alike."""
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save after so many."""
        self._batches += 1
        if self._batches % self._period == 0:
            self._state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save."""
        self._state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets `state.batch` to the batch that was done last; at the end of an epoch to 0.

    Args:
        state: To be kept up to date.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A batch is done."""
        self._state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The next epoch begins with its first batch."""
        self._state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets `state.epoch` to the number of epochs that were done, also by earlier calls of `fit`.

    Args:
        state: To be kept up to date.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state
        self._before = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Keras counts from 0 in each call of `fit`."""
        self._before = self._state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch is done."""
        self._state.epoch = self._before + epoch + 1
