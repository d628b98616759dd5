"""Elastic training of Keras models with a fixed number of ranks, see `horovod.common.elastic`."""

from __future__ import annotations

from horovod.common.elastic import run_fn as run
from horovod.keras.elastic.callbacks import CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback
from horovod.keras.elastic.state import KerasState

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
