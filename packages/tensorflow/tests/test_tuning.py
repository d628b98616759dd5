"""Ways to send gradients, tried in the first steps of a loop in Python, of a function and of a loop in a function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ringcore_tensorflow as ring
import tensorflow as tf
from ringcore_tensorflow._graph import taken
from ringcore_tensorflow.gradients import Reduction
from support.on_ranks import TWO, TWO_OVER_TCP, on
from support.trials import Trials, check_trials

LAYERS, WIDTH = 12, 16


class Training:
    """The same on all ranks at its beginning, with a batch of this rank's own."""

    def __init__(self, *, has_order: bool) -> None:
        self.has_order = has_order
        generator = tf.random.Generator.from_seed(7)
        self.layers = [tf.Variable(generator.normal((WIDTH, WIDTH)) / WIDTH, name=f"w{i}") for i in range(LAYERS)]
        self.inputs = tf.random.Generator.from_seed(ring.rank()).normal((2, WIDTH))

    def step(self) -> None:
        """One."""
        with tf.GradientTape() as tape:
            outputs = self.inputs
            for weights in self.layers:
                outputs = tf.tanh(outputs @ weights)
            loss = tf.reduce_mean(tf.square(outputs))
        reduction = Reduction(has_order=self.has_order)
        gradients = tape.gradient(loss, self.layers)
        for weights, gradient in zip(
            self.layers, reduction.apply(gradients, [f"w{i}" for i in range(LAYERS)]), strict=True
        ):
            weights.assign_sub(0.1 * gradient)

    def learnt(self) -> list[bytes]:
        """The bits of the weights."""
        return [weights.numpy().tobytes() for weights in self.layers]


def in_python(steps: int) -> list[bytes]:
    training = Training(has_order=False)
    for _ in range(steps):
        training.step()
    return training.learnt()


def in_function(steps: int, *, has_order: bool = False) -> list[bytes]:
    training = Training(has_order=has_order)
    step = tf.function(training.step)
    for _ in range(steps):
        step()
    return training.learnt()


def in_loop(steps: int) -> list[bytes]:
    training = Training(has_order=False)

    @tf.function
    def several() -> None:
        for _ in tf.range(10):
            training.step()

    for _ in range(steps // 10):
        several()
    return training.learnt()


@on(TWO, TWO_OVER_TCP)
def test_in_eager_mode(shared_folder: Path) -> None:
    check_trials(in_python, shared_folder, "buckets of 16000 bytes", ways=3)


@on(TWO_OVER_TCP)
@pytest.mark.parametrize("train", [in_function, in_loop])
def test_in_a_graph_operations_are_also_tried_all_at_once(train: Any, shared_folder: Path) -> None:
    check_trials(train, shared_folder, "buckets of 1000 bytes, at once", ways=5)


@on(TWO)
def test_conditions_of_a_graph_do_not_wait_for_each_other() -> None:
    @tf.function
    def sent(one: tf.Tensor, other: tf.Tensor, now: tf.Tensor) -> list[tf.Tensor]:
        return [
            taken(now, 0, lambda tensors, name=name: ring.grouped_allreduce(tensors, name=name), [tensor])[0]
            for name, tensor in (("one", one), ("other", other))
        ]

    values = tf.ones(3), tf.ones(4), tf.constant(0)
    operations = sent.get_concrete_function(*values).graph.get_operations()
    conditions = [operation for operation in operations if operation.type == "If"]
    assert len(conditions) == 2
    assert not any(condition.control_inputs for condition in conditions)
    assert [result.shape for result in sent(*values)] == [(3,), (4,)]


@on(TWO)
def test_what_was_asked_for_is_not_tried(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trials = Trials(monkeypatch, shared_folder, "")
    gradients = [tf.ones(1000) for _ in range(12)]
    names = [f"asked for {i}" for i in range(12)]
    for _ in range(2):
        Reduction(groups=3).apply(gradients, names)
    assert not trials.tuners
    assert caplog.text.count("groups says how they are sent") == 1
    Reduction().apply(gradients, names)
    assert len(trials.tuners) == 1
