"""Gradients of every op, against the definition, and of rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ringcore
import ringcore_tensorflow as ring
import tensorflow as tf
from support.on_ranks import THREE_OVER_TCP, TWO, on
from support.values import distance, of

# Differences of fifth order, of step 5e-4, of sums of sines in float64: the fifth derivative's term, 2e-15 times it.
DIFFERENCES = 1e-9
FACTORS = {"prescale_factor": 0.5, "postscale_factor": 3.0}

# Every op as a function of five rows.
CALLS: dict[str, Callable[[Any], Any]] = {
    "allreduce": lambda x: ring.allreduce(x, op=ring.Sum, prescale_factor=0.5),
    "average": lambda x: ring.allreduce(x, postscale_factor=3.0),
    "grouped": lambda x: tf.stack(ring.grouped_allreduce([x, x * x], op=ring.Sum)),
    "allgather": lambda x: ring.allgather(x[: ring.rank() + 1]),
    "grouped allgather": lambda x: tf.concat(ring.grouped_allgather([x[ring.rank() :], x * x]), 0),
    "broadcast": lambda x: ring.broadcast(x, ring.size() - 1),
    "broadcast of the first": lambda x: ring.broadcast(x, 0),
    "reducescatter": lambda x: ring.reducescatter(x, op=ring.Average, prescale_factor=2.0),
    "grouped reducescatter": lambda x: tf.concat(ring.grouped_reducescatter([x, x[1:]], op=ring.Sum, **FACTORS), 0),
    "scatter": lambda x: ring.scatter(x, ring.size() - 1, [1] * (ring.size() - 1) + [5 - ring.size() + 1]),
    "alltoall": lambda x: ring.alltoall(x, [1] * (ring.size() - 1) + [5 - ring.size() + 1])[0],
}


def slopes(function: Callable[[float], Any]) -> list[Any]:
    """The derivatives of what a function returns, at zero, by differences of fifth order."""
    step = 5e-4
    points = zip(*(function(factor * step) for factor in (1, -1, 2, -2)), strict=True)
    return [(8 * (right - left) - (far_right - far_left)) / (12 * step) for right, left, far_right, far_left in points]


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("name", CALLS)
def test_every_op_has_the_gradient_of_the_jobs_loss(name: str) -> None:
    """The sum of all ranks' losses, by differences in float64.

    All ranks move at once, each in a direction of its own. The second derivatives are slopes of the first ones.
    """
    me, call = ring.rank(), CALLS[name]
    start, direction = of(me, 5, 2), of(50 + me, 5, 2)
    weight = of(100 + me, *call(tf.constant(start)).shape)

    def derivatives(x: Any, run: Any = call) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = tf.reduce_sum(tf.sin(run(x)) * weight)
            first = tape.gradient(value, x)
            slope = tf.reduce_sum(first * direction)
        return value, slope, first, outer.gradient(slope, x)

    _, slope, _, second = derivatives(tf.constant(start))
    values, firsts = slopes(lambda step: derivatives(tf.constant(start + step * direction))[::2])
    found, expected = (float(ring.allreduce(part, op=ring.Sum)) for part in (slope, values))
    assert abs(found - expected) < DIFFERENCES
    assert distance(second, firsts) < DIFFERENCES
    for run in (functools.partial(derivatives, run=tf.function(call)), tf.function(derivatives)):
        _, slope_there, _, second_there = run(tf.constant(start))
        assert distance(slope_there, slope) < DIFFERENCES
        assert distance(second_there, second) < DIFFERENCES


# The rows of each rank: few are sent as rows, many as the whole tensor.
ROWS: dict[str, Callable[[int], list[int]]] = {
    "few": lambda rank: [5 + rank, 5, 5],
    "many": lambda rank: list(range(60)),
    "none on rank 0": lambda rank: [1, 2] if rank else [],
}


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("op", [pytest.param(ring.Sum, marks=pytest.mark.long), ring.Average])
def test_gradients_of_rows(kind: str, op: Any) -> None:
    me, n = ring.rank(), ring.size()
    rows = [ROWS[kind](rank) for rank in range(n)]
    whole = np.zeros((100, 3))
    for rank in range(n):
        for i, row in enumerate(rows[rank]):
            whole[row] += of(rank, len(rows[rank]) + 1, 3)[i] / (n if op is ring.Average else 1)
    values = tf.constant(of(me, len(rows[me]) + 1, 3)[:-1])
    own = tf.IndexedSlices(values, tf.constant(rows[me], tf.int64), tf.constant([100, 3], tf.int64))
    call = functools.partial(ring.allreduce, op=op)
    for found in (call(own), tf.function(call)(own)):
        indices = found.indices.numpy()
        dense = np.zeros((100, 3))
        dense[indices] = found.values.numpy()
        assert distance(dense, whole) < 4e-15
        assert len(set(indices)) == len(indices)
        assert (len(indices) == 100) == (kind == "many")


@on(TWO, THREE_OVER_TCP)
def test_rows_of_a_tensor_of_unknown_shape() -> None:
    unknown = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([ring.rank()]), None)
    found = ring.allreduce(unknown, op=ring.Sum)
    assert sorted(found.indices.numpy().tolist()) == list(range(ring.size()))


@on(TWO)
def test_exchanges_refuse_what_they_cannot_do() -> None:
    weight = tf.Variable(tf.ones([64, 64]))

    def gradient(jit_compile: bool = False, dtype: Any = tf.float32, **options: Any) -> Any:
        @tf.function(jit_compile=jit_compile, autograph=False)
        def found() -> Any:
            with ring.DistributedGradientTape(tf.GradientTape(), **options) as tape:
                held = tf.cast(weight, dtype)
                tape.watch(held)
                loss = tf.reduce_sum(held * held)
            return tape.gradient(loss, held)

        return found()

    exchange = ring.Compression.powersgd(1)
    with pytest.raises(ringcore.InvalidArgument, match=r"DistributedGradientTape is called anew in each step"):
        gradient(compression="powersgd")
    with pytest.raises(ringcore.InvalidArgument, match="leave out op"):
        gradient(compression=exchange, op=ring.Sum)
    with pytest.raises(ringcore.InvalidArgument, match="PowerSGD is in a function with jit_compile=True"):
        gradient(jit_compile=True, compression=exchange)
    with pytest.raises(tf.errors.OpError, match=r"InvalidArgument: .*float16, and PowerSGD takes float32 and float64"):
        gradient(dtype=tf.float16, compression=exchange)
    with pytest.raises(ringcore.InvalidArgument, match=r"does not take PowerSGD.*take one of none, fp16"):
        ring.allreduce(weight, compression=exchange)


@on(TWO)
def test_an_exchange_leaves_rows_to_themselves_and_sums_of_passes_together() -> None:
    exchange = ring.Compression.onebit()
    rows, weight = tf.Variable(tf.zeros([50, 40])), tf.Variable(tf.zeros([50, 40]))
    with ring.DistributedGradientTape(tf.GradientTape(), compression=exchange) as tape:
        loss = tf.reduce_sum(tf.gather(rows, [ring.rank()])) + tf.reduce_sum(weight * (1.0 + ring.rank()))
    of_rows, of_weight = tape.gradient(loss, [rows, weight])
    np.testing.assert_array_equal(tf.convert_to_tensor(of_rows)[:2], np.full((2, 40), 0.5))
    np.testing.assert_array_equal(of_weight, np.full((50, 40), 1.5))
    aggregate = ring.GradientAggregator(2, compression="onebit")
    assert not aggregate([tf.ones([50, 40])], [weight])[0]
    ready, (average,) = aggregate([tf.fill([50, 40], 2.0 * ring.rank())], [weight])
    assert ready
    np.testing.assert_array_equal(average, np.full((50, 40), (0.5 + 1.5) / 2))


@on(TWO)
@pytest.mark.parametrize("way", ["eager", "function"])
def test_an_exchange_tells_variables_of_one_name_apart(way: str) -> None:
    exchange = ring.Compression.onebit()
    variables = [tf.Variable(tf.zeros([50, 40]), name="w") for _ in range(2)]
    factor = 1.0 + ring.rank()

    def averages() -> Any:
        with ring.DistributedGradientTape(tf.GradientTape(), compression=exchange) as tape:
            loss = tf.reduce_sum(variables[0] * factor) + tf.reduce_sum(variables[1] * 3 * factor)
        return tape.gradient(loss, variables)

    first, second = averages() if way == "eager" else tf.function(averages, autograph=False)()
    np.testing.assert_array_equal(first, np.full((50, 40), 1.5))
    np.testing.assert_array_equal(second, np.full((50, 40), 4.5))
