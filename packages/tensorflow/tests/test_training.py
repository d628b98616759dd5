"""Ranks that train are like one process that trains on all their batches: tapes, aggregation, batch normalisation."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import ringcore_tensorflow as ring
import tensorflow as tf
from ringcore import adapter
from support.on_ranks import THREE_OVER_TCP, TWO, TWO_OVER_TCP, on
from support.values import distance, same_everywhere

# Twenty steps of float32 sums in another order; gradients and weights are about 1.
ROUNDING = 5e-6


def network() -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)])


def train(net: Any, optimizer: Any, x: Any, y: Any, tape_of: Callable[[Any], Any], *, graph: bool = True) -> list[Any]:
    """The weights after a step with each batch."""

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            logits = net(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        gradients = tape_of(tape).gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))

    optimizer.build(net.trainable_variables)
    run = tf.function(step) if graph else step
    for i in range(len(x)):
        run(tf.constant(x[i]), tf.constant(y[i]))
    return [np.array(variable) for variable in net.weights]


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("kind", ["sgd", pytest.param("adam", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("options", "graph"),
    [({}, True), ({"groups": 3}, False), ({"gradient_predivide_factor": 2.0}, True)],
    ids=["plain", "groups", "predivided"],
)
def test_ranks_train_like_one_with_all_their_batches(kind: str, options: dict[str, Any], graph: bool) -> None:
    me, n, steps, rows = ring.rank(), ring.size(), 20, 8
    generator = np.random.default_rng(2)
    x = generator.standard_normal((steps * rows * n, 6)).astype("float32")
    all_x = x.reshape(steps, n * rows, 6)
    all_y = (x @ generator.standard_normal((6, 3))).argmax(1).reshape(steps, n * rows)
    own = slice(me * rows, (me + 1) * rows)

    def optimizer() -> Any:
        return keras.optimizers.SGD(0.1, momentum=0.9) if kind == "sgd" else keras.optimizers.Adam(0.01)

    alone = train(network(), optimizer(), all_x, all_y, lambda tape: tape)
    net = network()
    ring.broadcast_variables(net.weights)
    tape_of = functools.partial(ring.DistributedGradientTape, **options)
    together = train(net, optimizer(), all_x[:, own], all_y[:, own], tape_of, graph=graph)
    for expected, found in zip(alone, together, strict=True):
        assert distance(expected, found) < ROUNDING
    assert same_everywhere([weight.tobytes() for weight in together])


@on(TWO, TWO_OVER_TCP)
def test_what_the_next_forward_needs_first_is_the_most_urgent() -> None:
    variables = [tf.Variable(tf.ones([1 << 20]), name=f"v{i}") for i in range(4)]  # each of them fills a bucket

    @tf.function
    def step() -> Any:
        with ring.DistributedGradientTape(tf.GradientTape(), name="urgent", check_weights=False) as tape:
            loss = sum(tf.reduce_sum(variable) for variable in variables)
        return tape.gradient(loss, variables)

    nodes = [node for node in step.get_concrete_function().graph.get_operations() if node.type == "RingcoreAllreduce"]
    names = [bytes(tf.get_static_value(node.inputs[0])).decode() for node in nodes]
    priorities = dict(zip(names, (node.get_attr("priority") for node in nodes), strict=True))
    assert priorities == {f"urgent.v{i}": -1 - i for i in range(4)}
    runtime = adapter.context().runtime
    runtime.start_timeline()
    step()
    # What has no priority is dealt out to several lanes, and what has one shares a lane, where it is put in order.
    lanes = {lane for _, activity, lane, *_ in runtime.stop_timeline() if activity == "queue"}
    assert len(lanes) == 1
    ring.barrier()


@on(TWO, TWO_OVER_TCP)
def test_a_step_written_out_begins_before_the_last_gradient_of_the_one_before_has_come() -> None:
    """Rank 1 submits by hand what rank 0's function does, and withholds a gradient until the second step has begun."""
    if ring.rank() == 0:
        first, last = tf.Variable(1.0, name="first"), tf.Variable(1.0, name="last")

        @tf.function
        def steps() -> Any:
            for number in range(2):
                begun = ring.allreduce(first, name="begun") if number == 1 else None
                tape = ring.DistributedGradientTape(tf.GradientTape(), name="step", groups=2, check_weights=False)
                with tape:
                    loss = tf.sin(first) * last
                for variable, gradient in zip((first, last), tape.gradient(loss, [first, last]), strict=True):
                    variable.assign_sub(gradient)
            return begun

        steps()
        ring.barrier()
        return
    priorities = {"step.first": -1, "begun": 0, "step.last": -2, "step.first.1": -1, "step.last.1": -2}
    for name, priority in priorities.items():
        ring.allreduce(tf.constant(1.0), name=name, priority=priority)
    ring.barrier()


@on(TWO, THREE_OVER_TCP)
def test_a_tape_that_is_asked_twice_and_for_what_it_does_not_know() -> None:
    me, n = ring.rank(), ring.size()
    variable, other = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    with ring.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        loss = tf.reduce_sum(variable * variable) * float(me + 1)
    for _ in range(2):
        found = tape.gradient(loss, {"v": variable, "none": other})["v"].numpy()
        assert distance(found, 2 * np.mean(range(1, n + 1)) * np.array([1.0, 2.0])) == 0.0
    assert tape.gradient(loss, [variable, other])[1] is None
    (zero,) = tape.gradient(loss, [other], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert float(zero) == 0.0


@on(TWO, THREE_OVER_TCP)
def test_gradients_that_stay_a_ranks_own() -> None:
    me, n = ring.rank(), ring.size()
    variable, other = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    with tf.GradientTape() as plain:
        loss = variable[0] * other * float(me + 1)
    partial = ring.DistributedGradientTape(plain)
    partial.register_local_source(other)
    shared, own = partial.gradient(loss, [variable, other])
    assert distance(tf.convert_to_tensor(shared), [3 * np.mean(range(1, n + 1)), 0.0]) == 0.0
    assert distance(own, np.float32(me + 1) / np.float32(n)) == 0.0
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((1,))
    layer.kernel.assign([[2.0]])
    with tf.GradientTape() as plain:
        loss = tf.reduce_sum(layer(tf.ones([1, 1]))) * float(me + 1)
    local = ring.PartialDistributedGradientTape(plain, local_layers=layer, scale_local_gradients=False)
    (of_layer,) = local.gradient(loss, [layer.kernel.value])
    assert distance(of_layer, [[me + 1]]) == 0.0


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("name", ["fp16", "bf16", "int8", "int4"])
def test_gradients_that_were_sent_in_fewer_bits(name: str) -> None:
    variable = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as plain:
        loss = tf.reduce_sum(variable) * 0.5
    compressed = ring.DistributedGradientTape(plain, compression=getattr(ring.Compression, name))
    gradient = compressed.gradient(loss, variable)
    assert gradient.dtype == tf.float32
    assert distance(gradient, [0.5, 0.5]) == 0.0


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_gradients_of_several_passes_are_reduced_together(mode: str) -> None:
    """Sums of three passes are reduced in the third, and begin anew."""
    me, n = ring.rank(), ring.size()
    first, unused, second = tf.Variable(tf.zeros([4])), tf.Variable(1.0), tf.Variable(tf.zeros([]))
    aggregator = ring.GradientAggregator(3, name=f"aggregated {mode}")

    def step(factor: Any) -> Any:
        ready, averaged = aggregator([tf.fill([4], factor), None, factor * 2.0], [first, unused, second])
        assert averaged[1] is None

        def apply() -> Any:
            first.assign_add(averaged[0])
            second.assign_add(averaged[2])
            return tf.constant(1)

        return tf.cond(ready, apply, lambda: tf.constant(0))

    run = tf.function(step) if mode == "function" else step
    assert sum(int(run(tf.constant(float((me + 1) * (i + 1))))) for i in range(7)) == 2
    expected = sum(range(1, n + 1)) / n * ((1 + 2 + 3) / 3 + (4 + 5 + 6) / 3)
    assert distance(first, np.full(4, expected)) < ROUNDING
    assert distance(second, 2 * expected) < ROUNDING


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("graph", [False, True])
def test_tapes_in_two_threads_whose_variables_have_the_same_names(graph: bool) -> None:
    me, n = ring.rank(), ring.size()
    wrong: list[str] = []

    def work(thread: int) -> None:
        variable = tf.Variable(tf.zeros([1000]))

        def step(factor: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * factor)
            name = f"thread {thread} {graph}"
            return ring.DistributedGradientTape(tape, op=ring.Sum, name=name).gradient(loss, variable)

        run = tf.function(step) if graph else step
        for i in range(50):
            found = run(tf.constant(float((me + 1) * (i + 1) * 10**thread))).numpy()
            expected = sum(range(1, n + 1)) * (i + 1) * 10**thread
            if not (found == expected).all():
                wrong.append(f"thread {thread} step {i}: {found[0]} instead of {expected}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("masked", [False, True])
def test_batch_normalisation_over_all_ranks(masked: bool) -> None:
    me, n, rows = ring.rank(), ring.size(), 8
    x = np.random.default_rng(7).standard_normal((rows * n, 4, 3)).astype("float32")
    mask = np.random.default_rng(8).random((rows * n, 4)) < 0.7 if masked else None
    mine = slice(me * rows, (me + 1) * rows)
    whole, own = keras.layers.BatchNormalization(), ring.SyncBatchNormalization()
    for layer in (whole, own):
        layer.build(x.shape)
    for _ in range(3):
        expected = whole(tf.constant(x), training=True, mask=mask)
        with tf.GradientTape() as tape:
            found = own(tf.constant(x[mine]), training=True, mask=None if mask is None else mask[mine])
            loss = tf.reduce_sum(found * found * found)
        gradient = ring.allreduce(tape.gradient(loss, own.gamma.value), op=ring.Sum, name="gamma")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(whole(tf.constant(x), training=True, mask=mask) ** 3)
    assert distance(found, expected[mine]) < ROUNDING
    assert distance(own.moving_variance, ring.broadcast(own.moving_variance.value, 0)) < ROUNDING
    if mask is None:
        assert distance(gradient, tape.gradient(loss, whole.gamma.value)) / 1e3 < ROUNDING
