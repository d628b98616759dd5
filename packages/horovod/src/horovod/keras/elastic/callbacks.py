"""Callbacks that keep an elastic state up to date while a model is fitted."""

from __future__ import annotations

from typing import Any

import keras

from horovod.common.elastic import State

__all__ = ["CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"]


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
