"""Horovod's callbacks for Keras."""

from __future__ import annotations

from typing import Any

from ringcore_keras import callbacks as ring

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

LearningRateScheduleCallback = ring.LearningRateScheduleCallback
LearningRateWarmupCallback = ring.LearningRateWarmupCallback
MetricAverageCallback = ring.MetricAverageCallback


class BroadcastGlobalVariablesCallback(ring.BroadcastGlobalVariablesCallback):
    """`ringcore_keras.callbacks.BroadcastGlobalVariablesCallback`; its last argument may be given by position."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__(root_rank, device, local_variables=local_variables or ())


class BestModelCheckpoint(ring.BestModelCheckpoint):
    """`ringcore_keras.callbacks.BestModelCheckpoint`; `filepath` may be set after it was made."""

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq: Any = "epoch",
        filepath: str = "best.keras",
    ) -> None:  # fmt: skip
        super().__init__(filepath, monitor, verbose=verbose, mode=mode, save_freq=save_freq)
