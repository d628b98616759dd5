"""Sums of those gradients that are there first: what `tests/conformance` does not do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import ringcore
import ringcore_tensorflow as ring
import tensorflow as tf
from support.on_ranks import TWO, on


def start() -> list[tf.Variable]:
    draw = np.random.default_rng(0)
    return [tf.Variable(draw.standard_normal((5, 3)), name="w"), tf.Variable(np.zeros((3,), np.float32), name="b")]


def learn(optimizer: Any, variables: list[tf.Variable], steps: range) -> None:
    for step in steps:
        x = np.random.default_rng([step, ring.rank()]).standard_normal((4, 5))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ variables[0] + tf.cast(variables[1], tf.float64)) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def adam() -> Any:
    return tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5))


@on(TWO)
def test_what_is_kept_goes_on_as_if_nothing_had_been() -> None:
    ends = []
    for goes_on in (False, True):
        variables = start()
        optimizer = ring.AsyncOptimizer(adam(), variables, staleness=0)
        learn(optimizer, variables, range(3))
        if goes_on:
            optimizer.synchronize()
            kept = optimizer.state_dict()
            optimizer = ring.AsyncOptimizer(adam(), variables, staleness=0)
            optimizer.load_state_dict(kept)
        learn(optimizer, variables, range(3, 6))
        optimizer.synchronize()
        ends.append([variable.numpy().tobytes() for variable in variables])
    assert ends[0] == ends[1]


@on(TWO)
def test_what_cannot_be_is_refused() -> None:
    variables = start()
    with pytest.raises(ringcore.InvalidArgument, match="has apply_gradients, not int"):
        ring.AsyncOptimizer(3, variables, staleness=0)
    with pytest.raises(ringcore.InvalidArgument, match="'steps:0' is of int32"):
        ring.AsyncOptimizer(adam(), [tf.Variable(3, name="steps")], staleness=0)
    with pytest.raises(ringcore.InvalidArgument, match=r"use ringcore_keras\.AsyncOptimizer"):
        ring.AsyncOptimizer(adam(), [tf.constant(3.0)], staleness=0)
    with pytest.raises(ringcore.InvalidArgument, match="AsyncOptimizer does not take Blocks"):
        ring.AsyncOptimizer(adam(), variables, staleness=0, compression=ring.Compression.blocks())
    optimizer = ring.AsyncOptimizer(adam(), variables, staleness=0)
    with pytest.raises(ringcore.InvalidArgument, match="none of the variables"):
        optimizer.apply_gradients([(tf.constant(1.0), tf.Variable(1.0))])
    with pytest.raises(ringcore.InvalidArgument, match="has a schedule"):
        optimizer.learning_rate = 0.1
    used = adam()
    used.build(start())
    with pytest.raises(ringcore.InvalidArgument, match="was not used yet"):
        ring.AsyncOptimizer(used, variables, staleness=0)

    @tf.function(jit_compile=True)
    def compiled() -> None:
        optimizer.apply_gradients([(tf.ones((5, 3), tf.float64), variables[0])])

    with pytest.raises(Exception, match="AsyncOptimizer is in a function with jit_compile=True") as caught:
        compiled()
    assert isinstance(ring.as_ringcore_error(caught.value), ringcore.InvalidArgument)
    variables[1].assign(np.full(3, ring.rank(), np.float32))
    with pytest.raises(ringcore.MismatchError, match=r"b:0.*broadcast_variables"):
        learn(optimizer, variables, range(1))
