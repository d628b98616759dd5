"""Callbacks for `model.fit`, on every backend of Keras.

They work on values outside of what the backend compiles, through the core.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import ringcore
from ringcore import InvalidArgument, adapter
from ringcore.adapter import ProcessSet, global_process_set

from ringcore_keras.local import DiLoCoCallback, LocalSGDCallback
from ringcore_keras.optimizer import innermost, shared_variables
from ringcore_keras.variables import broadcast_variables, synchronize_state

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "DiLoCoCallback",
    "EndTogetherCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "LocalSGDCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Give every rank the root's weights and optimizer state when training begins.

    What is made only in the first batch (a model without known input shapes) is broadcast after it.

    Args:
        root_rank: Rank whose values win.
        device: Unused; accepted because scripts written for Horovod pass it.
        local_variables: Variables that stay this rank's own.
        process_set: The ranks that train together.
    """

    def __init__(
        self, root_rank: int = 0, device: str = "", *, local_variables: Any = (),
        process_set: ProcessSet = global_process_set,
    ) -> None:  # fmt: skip
        super().__init__()
        self._root_rank = root_rank
        self._local = {id(variable) for variable in local_variables or ()}
        self._process_set = process_set
        self._done = 0
        self._first = True

    # What `PartialDistributedOptimizer` leaves to the rank stays its own without being registered here.
    def register_local_var(self, variable: Any) -> None:
        """Leave a variable to this rank."""
        self._local.add(id(variable))

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast what is there."""
        optimizer = self.model.optimizer
        if self.model.built and optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self._done = 0
        self._first = True
        self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast what the first batch has made; end where a rank is lost, which JAX tells much later."""
        adapter.check()
        if self._first:
            self._first = False
            self._broadcast()

    def _broadcast(self) -> None:
        variables = shared_variables(self.model)
        if len(variables) == self._done:
            return
        self._done = len(variables)
        synchronize_state(self.model)
        broadcast_variables(
            [variable for variable in variables if id(variable) not in self._local], self._root_rank,
            process_set=self._process_set,
        )  # fmt: skip


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Average metrics over the ranks at the end of each epoch, for the callbacks behind this one.

    Each rank's value counts by its number of samples. So loss, accuracy and whatever else is a mean over samples is
    what one process would have found, in training and in validation; others (AUC) are averages of the ranks' values.
    Put it before callbacks that look at metrics: EarlyStopping, ModelCheckpoint, ReduceLROnPlateau.

    Args:
        device: Unused; accepted because scripts written for Horovod pass it.
        process_set: The ranks that train together.
    """

    def __init__(self, device: str = "", *, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set
        self._trained: float | None = None
        self._validated = 0.0
        self._batches = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start to count."""
        self._trained = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count."""
        self._batches = batch + 1

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count."""
        self._batches = batch + 1

    def on_test_begin(self, logs: Any = None) -> None:
        """Note the number of samples of the epoch: validation is about to reset the metrics."""
        if self._trained is None:
            self._trained = _samples_seen(self.model) or self._batches

    def on_test_end(self, logs: Any = None) -> None:
        """Note the number of samples of the validation."""
        self._validated = _samples_seen(self.model) or self._batches

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average what this rank has found."""
        _end_batches(self.model)
        trained = (_samples_seen(self.model) or self._batches) if self._trained is None else self._trained
        if not logs or self._process_set.size() == 1:
            return
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        samples = np.array([self._validated if name.startswith("val_") else trained for name in names])
        values = np.array([float(logs[name]) for name in names])
        samples = np.maximum(samples, np.finfo(float).tiny)  # where nobody has counted, ranks count alike
        sums = ringcore.allreduce(
            np.stack([values * samples, samples]), op=ringcore.Sum, name=f"metrics.{','.join(names)}"[:4000],
            process_set=self._process_set,
        )  # fmt: skip
        logs.update(zip(names, (sums[0] / sums[1]).tolist(), strict=True))


def _samples_seen(model: Any) -> float:
    """How many samples went into the metrics since they were reset: what Keras' own mean of the losses has counted.

    0 where a `train_step` of the user's does not update it.
    """
    synchronize_state(model)
    for metric in model.metrics:
        if metric.name == "loss" and hasattr(metric, "count"):
            return float(keras.ops.convert_to_numpy(metric.count))
    return 0.0


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Set the learning rate to `initial_lr * multiplier(epoch)`.

    With momentum, velocities are scaled by the same factor (Goyal et al., "Accurate, Large Minibatch SGD", 2017,
    section 3): what was accumulated at the old rate would otherwise outweigh the new one.

    Args:
        initial_lr: Learning rate that is multiplied.
        multiplier: A factor, or a function of the epoch, which counts from 0; a fraction of one where `staircase` is
            off.
        start_epoch: First epoch in which it is set.
        end_epoch: First epoch in which it is not any more; None: never.
        staircase: Once an epoch, or in every batch.
        momentum_correction: Scale velocities.
        steps_per_epoch: Batches of an epoch, where Keras cannot tell.

    Raises:
        InvalidArgument: The optimizer has a schedule of its own.
    """

    def __init__(
        self, initial_lr: float, multiplier: float | Callable[[float], float], start_epoch: int = 0,
        end_epoch: int | None = None, staircase: bool = True, momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._initial = initial_lr
        constant = 1.0 if callable(multiplier) else float(multiplier)
        self._multiplier = multiplier if callable(multiplier) else lambda _: constant
        self._start, self._end = start_epoch, end_epoch
        self._staircase = staircase or not callable(multiplier)
        self._corrects_momentum = momentum_correction
        self._steps = steps_per_epoch
        self._epoch = -1

    def on_train_begin(self, logs: Any = None) -> None:
        """Look at the optimizer."""
        _check_rate_is_settable(self.model.optimizer, type(self).__name__)
        if self._staircase or self._steps:
            return
        # Ranks with other numbers of batches step at the same rates.
        own = np.array([(self.params or {}).get("steps") or 0])
        self._steps = int(ringcore.allreduce(own, op=ringcore.Max, name=f"{type(self).__name__}.steps")[0])
        if self._steps == 0:
            raise InvalidArgument(
                f"{type(self).__name__} cannot tell how many batches an epoch has; pass steps_per_epoch"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set it for the epoch."""
        self._epoch = epoch
        if self._staircase:
            self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set it for the batch."""
        if not self._staircase:
            self._set(self._epoch + batch / (self._steps or 1))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Tell it."""
        if logs is not None:
            logs["lr"] = _rate_of(self.model.optimizer)

    def _set(self, epoch: float) -> None:
        if epoch < self._start or (self._end is not None and epoch >= self._end):
            return
        _set_rate(self.model, self._initial * self._multiplier(epoch), correct_momentum=self._corrects_momentum)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Begin with the learning rate of one rank and get to `initial_lr`, that of all ranks, step by step.

    Args:
        initial_lr: The rate of all ranks together, usually that of one rank times the number of ranks.
        warmup_epochs: How long it takes.
        momentum_correction: See `LearningRateScheduleCallback`.
        steps_per_epoch: Batches of an epoch, where Keras cannot tell.
        verbose: 1: rank 0 tells when it is done.
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True,
        steps_per_epoch: int | None = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        def multiplier(epoch: float) -> float:
            # The last batch of the warm-up has the whole rate.
            reached = min((epoch + 1.0 / (self._steps or 1)) / warmup_epochs, 1.0)
            return 1.0 / ringcore.size() * (reached * (ringcore.size() - 1) + 1)

        super().__init__(
            initial_lr, multiplier, end_epoch=warmup_epochs, staircase=False, momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )  # fmt: skip
        self._verbose = verbose

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Get to the whole rate where several steps are one batch to Keras, and the last one was not seen."""
        if epoch == self._end and self._epoch == epoch - 1:
            _set_rate(self.model, self._initial, correct_momentum=self._corrects_momentum)
        super().on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Tell it."""
        super().on_epoch_end(epoch, logs)
        if self._end is not None and epoch == self._end - 1 and self._verbose > 0 and ringcore.rank() == 0:
            print(f"\nEpoch {epoch + 1}: the warm-up is done; the learning rate is {_rate_of(self.model.optimizer):g}")


def _check_rate_is_settable(optimizer: Any, who: str) -> None:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(inner._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        raise InvalidArgument(f"{who} sets the learning rate, but the optimizer has a schedule; leave out one of them")


def _rate_of(optimizer: Any) -> float:
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def _set_rate(model: Any, rate: float, *, correct_momentum: bool) -> None:
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    old = _rate_of(optimizer)
    if rate == old:
        return
    synchronize_state(model)
    optimizer.learning_rate = rate
    if correct_momentum and old > 0 and getattr(optimizer, "momentum", 0.0) > 0.0:
        for velocity in getattr(optimizer, "momentums", ()):
            velocity.assign(velocity * (rate / old))


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """`keras.callbacks.ModelCheckpoint` of the best model, written by one rank.

    Put it behind MetricAverageCallback: then all ranks agree on which model is the best one.

    Args:
        filepath: File of the model; only the root's is written.
        monitor: Metric that tells how good it is.
        root_rank: Rank that writes.
        options: Of `keras.callbacks.ModelCheckpoint`: `verbose`, `save_weights_only`, `mode`, `save_freq`.
    """

    def __init__(self, filepath: str | Path, monitor: str = "val_loss", *, root_rank: int = 0, **options: Any) -> None:
        super().__init__(str(filepath), monitor=monitor, save_best_only=True, **options)
        self._root_rank = root_rank

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if ringcore.rank() == self._root_rank:
            super()._save_model(*args, **kwargs)


# The callback that is in charge of a model's batches, if there is one.
_ending: weakref.WeakKeyDictionary[Any, weakref.ref[EndTogetherCallback]] = weakref.WeakKeyDictionary()


class EndTogetherCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Let all ranks end an epoch, and training, together.

    A rank that has fewer batches than others takes part in their reductions with zeros until they are done; then all
    get the weights of the one that was done last, but for layers of a PartialDistributedOptimizer. And where one rank
    stops training (EarlyStopping, TerminateOnNaN), all do. Put it behind the callbacks that may stop.
    """

    def __init__(self) -> None:
        super().__init__()
        self._batches = 0
        self._ended = True

    def on_train_begin(self, logs: Any = None) -> None:
        """Take charge of the model's batches."""
        rows = [layer.name for layer in self.model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
        options = getattr(innermost(self.model.optimizer), "ring_options", None)
        if rows and keras.config.backend() == "tensorflow" and options is not None and not options.sparse_as_dense:
            raise InvalidArgument(
                f"the gradients of {', '.join(rows)} are sent as rows, and ranks without batches cannot take part in "
                "that; pass sparse_as_dense=True to DistributedOptimizer"
            )
        self._ended = True
        _ending[self.model] = weakref.ref(self)

    def on_train_end(self, logs: Any = None) -> None:
        """Give it back."""
        _ending.pop(self.model, None)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start to count."""
        self._batches, self._ended = 0, False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count."""
        self._batches = batch + 1

    def on_test_begin(self, logs: Any = None) -> None:
        """The batches of the epoch are done: what comes is its validation."""
        self.end_batches()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Wait for the others' batches, and ask them whether they stop."""
        self.end_batches()
        stops = ringcore.allreduce(
            np.array([self.model.stop_training], np.uint8), op=ringcore.Max, name="EndTogetherCallback.stop"
        )
        self.model.stop_training = bool(stops[0])

    def end_batches(self) -> None:
        """Wait until all ranks have no batch left. Does nothing the second time in an epoch."""
        if self._ended:
            return
        self._ended = True
        last = ringcore.join()
        batches = ringcore.allgather(np.array([self._batches]), name="EndTogetherCallback.batches")
        if len(set(batches.tolist())) > 1:
            synchronize_state(self.model)
            broadcast_variables(shared_variables(self.model), last)


def _end_batches(model: Any) -> None:
    """Before a collective at the end of an epoch: ranks with more batches are not there yet."""
    reference = _ending.get(model)
    callback = None if reference is None else reference()
    if callback is not None:
        callback.end_batches()
