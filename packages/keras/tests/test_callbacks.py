"""The callbacks of the Keras adapter on several ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import ringcore_keras as ring
from support.on_keras import (
    BATCH,
    ROUNDING,
    TWO,
    arrays,
    compiled,
    data,
    digest,
    model,
    same_everywhere,
    steps_at_once,
)
from support.on_ranks import on


@on(*TWO)
@pytest.mark.parametrize("steps", [1, 4])
def test_ranks_begin_with_the_weights_and_the_optimizer_of_the_root(steps: int) -> None:
    """Ranks that begin differently go on alike, with the optimizer's state of the root as well."""
    keras.utils.set_random_seed(ring.rank())
    if ring.rank() == 1:
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])  # one rank has made one model more
    net = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(3)])  # no input shape: built in fit
    wrapped = ring.DistributedOptimizer(keras.optimizers.Adam(0.01 * (ring.rank() + 1)))
    compiled(net, wrapped, **steps_at_once(steps))
    x, y = ring.shard(data(64))
    net.fit(x, y, batch_size=8, verbose=0, callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(1)])
    assert same_everywhere(digest(net.weights))
    assert float(net.optimizer.learning_rate) == pytest.approx(0.02, abs=1e-8)
    assert same_everywhere(digest(wrapped.variables))


@on(*TWO)
def test_metrics_are_those_of_all_samples() -> None:
    """With unequal numbers of samples the averaged metrics are those of one process."""
    x, y = data(60)
    val_x, val_y = data(44)
    rows = slice(0, 40) if ring.rank() == 0 else slice(40, 60)
    val_rows = slice(0, 12) if ring.rank() == 0 else slice(12, 44)
    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.SGD(0.0)))
    expected = net.evaluate(x, y, batch_size=20, verbose=0, return_dict=True)
    expected_val = net.evaluate(val_x, val_y, batch_size=4, verbose=0, return_dict=True)
    # As many batches on both ranks.
    seen = net.fit(
        x[rows], y[rows], batch_size=20 if ring.rank() == 0 else 10, verbose=0, epochs=2, shuffle=False,
        validation_data=(val_x[val_rows], val_y[val_rows]), callbacks=[ring.callbacks.MetricAverageCallback()],
    ).history  # fmt: skip
    for name, value in expected.items():
        assert abs(seen[name][1] - value) < ROUNDING
    for name, value in expected_val.items():
        assert abs(seen[f"val_{name}"][1] - value) < ROUNDING
    assert same_everywhere(seen)


class OwnStep(keras.Model):
    """A train_step of the user's, with a metric that Keras knows nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen = keras.metrics.Mean("seen")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, *args: Any) -> Any:
        if keras.config.backend() == "jax":
            state, _ = args
            trained, others, slots, metrics = state
            index = [id(v) for v in self.metrics_variables]
            new = self.seen.stateless_update_state(
                [metrics[index.index(id(v))] for v in self.seen.variables], 1.0 + ring.rank()
            )
            metrics = list(metrics)
            for variable, value in zip(self.seen.variables, new, strict=True):
                metrics[index.index(id(variable))] = value
            return {"seen": self.seen.stateless_result(new)}, (trained, others, slots, metrics)
        self.seen.update_state(1.0 + ring.rank())
        return {"seen": self.seen.result()}


@on(*TWO)
def test_metrics_of_a_step_of_the_users_own() -> None:
    net = OwnStep()
    net.compile(optimizer=ring.DistributedOptimizer("sgd"), loss="mse")
    x, y = data(16)
    callbacks = [ring.callbacks.MetricAverageCallback()]
    (seen,) = net.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks).history["seen"]
    assert abs(seen - (1 + ring.size()) / 2) < ROUNDING


class Note(keras.callbacks.Callback):
    """The learning rate of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(self.model.optimizer.learning_rate))


@on(*TWO)
def test_the_learning_rate_warms_up_and_follows_its_schedule() -> None:
    x, y = ring.shard(data(10 * BATCH * ring.size()))
    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.SGD(0.4, momentum=0.9)))
    note = Note()
    callbacks = [
        ring.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2),
        ring.callbacks.LearningRateScheduleCallback(0.4, lambda epoch: 0.1, start_epoch=3),
        note,
    ]
    history = net.fit(x, y, batch_size=BATCH, epochs=4, verbose=0, callbacks=callbacks).history
    n, steps = ring.size(), 10
    warm = [0.4 / n * ((i + 1) / (2 * steps) * (n - 1) + 1) for i in range(2 * steps)]
    assert note.rates == pytest.approx(warm + [0.4] * steps + [0.04] * steps, abs=ROUNDING, rel=0)
    assert history["lr"][-1] == pytest.approx(0.04, abs=1e-7)
    assert same_everywhere(digest(net.weights))
    # With momentum 0 the weights' way does not depend on the correction; what it does to the velocity is seen directly.
    velocity = arrays(net.optimizer.momentums)
    ring.callbacks._set_rate(net, 0.08, correct_momentum=True)
    for before, after in zip(velocity, arrays(net.optimizer.momentums), strict=True):
        assert np.abs(after - 2 * before).max() < ROUNDING


@on(*TWO)
def test_the_learning_rate_warms_up_with_several_steps_at_once() -> None:
    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.SGD(0.4)), **steps_at_once(5))
    x, y = ring.shard(data(10 * BATCH * ring.size()))
    warmup = ring.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2)
    net.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[warmup])
    assert abs(float(net.optimizer.learning_rate) - 0.4) < ROUNDING


class StopOnRank1(keras.callbacks.Callback):
    """In the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(epoch)
        if ring.rank() == 1 and epoch == 1:
            self.model.stop_training = True


@on(*TWO)
def test_ranks_with_other_numbers_of_batches_end_together() -> None:
    x, y = data(40 if ring.rank() == 0 else 24)
    stop = StopOnRank1()
    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    net.fit(
        x, y, batch_size=BATCH, epochs=5, verbose=0, validation_data=(x[:8], y[:8]),
        callbacks=[ring.callbacks.MetricAverageCallback(), stop, ring.callbacks.EndTogetherCallback()],
    )  # fmt: skip
    assert stop.epochs == [0, 1]
    assert same_everywhere(digest(net.weights))
