"""Keras 3 on Ray Train, on any of its backends: `RingKerasTrainer`, `prepare_model`, and a callback that reports."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import ray.train
import ringcore
import ringcore_keras

from ringcore_ray.train import RingConfig, RingTrainer, leaving

__all__ = ["ReportCheckpointCallback", "RingKerasConfig", "RingKerasTrainer", "prepare_model"]

CHECKPOINT = "model.keras"
_MOMENTS = (
    "epoch_begin", "epoch_end", "train_begin", "train_end", "test_begin", "test_end", "predict_begin", "predict_end",
    *(f"{what}_batch_{edge}" for what in ("train", "test", "predict") for edge in ("begin", "end")),
)  # fmt: skip


@dataclasses.dataclass
class RingKerasConfig(RingConfig):
    """A `RingConfig` whose workers have called `ringcore_keras.init()` when the training function begins."""

    @property
    def train_func_context(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Runs around the training function on each worker."""
        return _initialized


class RingKerasTrainer(RingTrainer):
    """Ray Train's trainer for models of Keras 3: the function makes and fits one, and passes it to `prepare_model`.

    Args:
        train_loop_per_worker: Runs on each worker.
        **options: Of DataParallelTrainer; `backend_config=RingKerasConfig(env=...)`.
    """

    config = RingKerasConfig


@contextlib.contextmanager
def _initialized() -> Iterator[None]:
    with leaving():
        ringcore.init()
        yield


def prepare_model(model: Any, **options: Any) -> Any:
    """Let a model's gradients be averaged over the workers, which begin with the weights of rank 0.

    Args:
        model: Compiled.
        options: Of `ringcore_keras.DistributedOptimizer`.

    Returns:
        It.

    Raises:
        ValueError: It is not compiled.
    """
    if getattr(model, "optimizer", None) is None:
        raise ValueError("the model has no optimizer: call compile() before prepare_model")
    model.optimizer = ringcore_keras.DistributedOptimizer(model.optimizer, **{"broadcast": True, **options})
    return model


class ReportCheckpointCallback(keras.callbacks.Callback):
    """Reports metrics to Ray Train, and rank 0's model as a checkpoint, in the file `model.keras`.

    Arguments and moments are those of `ray.train.tensorflow.keras.ReportCheckpointCallback`, which is for TensorFlow.

    Args:
        checkpoint_on: When to keep a checkpoint: "epoch_end" and so on, or several.
        report_metrics_on: When to report metrics; with a checkpoint they always are.
        metrics: Which, as a name, names, or a dictionary of reported names; None: all.

    Raises:
        ValueError: There is no such moment.
    """

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: str | Sequence[str] | dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._checkpoint_on = _several(checkpoint_on)
        self._metrics = metrics if metrics is None or isinstance(metrics, dict) else {m: m for m in _several(metrics)}
        for moment in {*self._checkpoint_on, *_several(report_metrics_on)}:
            if moment not in _MOMENTS:
                raise ValueError(f"there is no moment {moment!r}; there are {', '.join(_MOMENTS)}")
            setattr(self, f"on_{moment}", functools.partial(self._report, moment))

    def _report(self, moment: str, *arguments: Any, logs: dict[str, Any] | None = None) -> None:
        """What Keras calls: with the number of an epoch or batch, or without, and the metrics."""
        told = logs or (arguments[-1] if arguments and isinstance(arguments[-1], dict) else {})
        names = {name: name for name in told} if self._metrics is None else self._metrics
        metrics = {name: float(told[own]) for name, own in names.items()}
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if moment in self._checkpoint_on and ringcore.rank() == 0:
                self.model.save(Path(folder, CHECKPOINT))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)


def _several(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
