"""Ways to send gradients, tried in the first steps of a loop in Python, of a function and of a loop in a function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ringcore_tensorflow as ring
import tensorflow as tf
from ringcore_tensorflow.gradients import Reduction
from support.on_ranks import TWO, TWO_OVER_TCP, on
from support.trials import check_trials

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
