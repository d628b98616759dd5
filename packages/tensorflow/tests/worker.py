"""Cases for test_tensorflow.py: each runs on every rank."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import ringcore_tensorflow as ring
import tensorflow as tf

CASES: dict[str, Callable[[], dict[str, Any]]] = {}


def case(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    CASES[function.__name__] = function
    return function


def of(rank: int, *shape: int) -> Any:
    return np.random.default_rng([rank, *shape]).standard_normal(shape)


def same_everywhere(value: Any) -> bool:
    values = ring.allgather_object(value)
    return all(other == values[0] for other in values)


def distance(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def differentiable_calls() -> dict[str, Callable[[Any], Any]]:
    """Every op as a function of five rows."""
    me, n = ring.rank(), ring.size()
    factors = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    return {
        "allreduce": lambda x: ring.allreduce(x, op=ring.Sum, prescale_factor=0.5),
        "average": lambda x: ring.allreduce(x, postscale_factor=3.0),
        "grouped": lambda x: tf.stack(ring.grouped_allreduce([x, x * x], op=ring.Sum)),
        "allgather": lambda x: ring.allgather(x[: me + 1]),
        "grouped allgather": lambda x: tf.concat(ring.grouped_allgather([x[me:], x * x]), 0),
        "broadcast": lambda x: ring.broadcast(x, n - 1),
        "broadcast of the first": lambda x: ring.broadcast(x, 0),
        "reducescatter": lambda x: ring.reducescatter(x, op=ring.Average, prescale_factor=2.0),
        "grouped reducescatter": lambda x: tf.concat(ring.grouped_reducescatter([x, x[1:]], op=ring.Sum, **factors), 0),
        "alltoall": lambda x: ring.alltoall(x, [1] * (n - 1) + [5 - n + 1])[0],
    }


def slopes(function: Callable[[float], Any]) -> list[Any]:
    """The derivatives of what a function returns, at zero, by differences of fifth order."""
    step = 5e-4
    points = zip(*(function(factor * step) for factor in (1, -1, 2, -2)), strict=True)
    return [(8 * (right - left) - (far_right - far_left)) / (12 * step) for right, left, far_right, far_left in points]


@case
def gradients() -> dict[str, Any]:
    """Of every op, against the definition: the sum of all ranks' losses, by differences in float64.

    All ranks move at once, each in a direction of its own. The second derivatives are slopes of the first ones.
    """
    me = ring.rank()
    results = {}
    start, direction = of(me, 5, 2), of(50 + me, 5, 2)
    for name, call in differentiable_calls().items():
        weight = of(100 + me, *call(tf.constant(start)).shape)

        def loss(x: Any, run: Any, weight: Any = weight) -> Any:
            return tf.reduce_sum(tf.sin(run(x)) * weight)

        def derivatives(x: Any, run: Any = call, loss: Any = loss) -> Any:
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    value = loss(x, run)
                first = tape.gradient(value, x)
                slope = tf.reduce_sum(first * direction)
            return value, slope, first, outer.gradient(slope, x)

        _, slope, _, second = derivatives(tf.constant(start))
        values, firsts = slopes(lambda step, run=derivatives: run(tf.constant(start + step * direction))[::2])
        found, expected = (float(ring.allreduce(part, op=ring.Sum)) for part in (slope, values))
        results[name], results[f"{name}, second"] = abs(found - expected), distance(second, firsts)
        modes = {
            "of a function": functools.partial(derivatives, run=tf.function(call)),
            "in a function": tf.function(derivatives),
        }
        for mode, run in modes.items():
            _, slope_there, _, second_there = run(tf.constant(start))
            results[f"{name} {mode}"] = distance(slope_there, slope)
            results[f"{name} {mode}, second"] = distance(second_there, second)
    return results


@case
def control_flow() -> dict[str, Any]:
    """Loops whose iterations run beside each other, conditions, functions that are called several times."""
    me, n = ring.rank(), ring.size()
    total = sum(range(1, n + 1))

    @tf.function
    def loop(x: Any) -> Any:
        results = tf.TensorArray(tf.float32, 50)
        for i in tf.range(50):
            results = results.write(i, ring.allreduce(x * tf.cast(i, tf.float32), op=ring.Sum))
        return results.stack()

    @tf.function
    def inner(x: Any) -> Any:
        return ring.allreduce(x, op=ring.Sum)

    @tf.function
    def twice(x: Any) -> Any:
        return inner(x) + inner(2.0 * x) + inner(3.0 * x)

    @tf.function
    def branch(x: Any, flag: Any) -> Any:
        return tf.cond(flag, lambda: ring.allreduce(x, op=ring.Sum), lambda: ring.allreduce(x, op=ring.Max) * 10.0)

    @tf.function
    def gradient_of_loop(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(3):
                y = ring.allreduce(y, op=ring.Average) * 2.0
            z = tf.reduce_sum(y)
        return tape.gradient(z, x)

    mine = float(me + 1)
    return {
        "loop": distance(loop(tf.constant(mine)), np.arange(50) * total),
        "twice": distance(twice(tf.constant(mine)), 6 * total),
        "if": distance(branch(tf.constant(mine), tf.constant(True)), total),
        "else": distance(branch(tf.constant(mine), tf.constant(False)), 10 * n),
        "gradient": distance(gradient_of_loop(tf.constant(mine)), 8.0),
    }


@case
def many_in_flight() -> dict[str, Any]:
    """Two hundred at once on one thread of TensorFlow, which the ranks' graphs begin in opposite order."""
    me, n = ring.rank(), ring.size()

    @tf.function
    def step(tensors: list[Any]) -> list[Any]:
        results: list[Any] = [None] * len(tensors)
        order = range(len(tensors)) if me == 0 else reversed(range(len(tensors)))
        previous: list[Any] = []
        for i in order:
            with tf.control_dependencies(previous):
                value = tf.identity(tensors[i])
            previous = [value]
            results[i] = ring.allreduce(value, op=ring.Sum, name=f"tensor {i}")
        return results

    tensors = [tf.fill([1 + 7 * i], float(me + 1) * i) for i in range(200)]
    total = sum(range(1, n + 1))
    wrong = 0
    for _ in range(5):
        wrong += sum(distance(result, np.full(1 + 7 * i, total * i)) > 0 for i, result in enumerate(step(tensors)))
    return {"wrong": wrong}


@case
def large() -> dict[str, Any]:
    """Results that lie in the engine's memory: of all sizes in one group, kept over several steps, fed to other ops."""
    sizes = [300_000, 1, 7, 0, 5000, 123_457]

    @tf.function
    def step(factor: Any) -> Any:
        mine = [tf.ones([size]) * factor * float(2 ** ring.rank()) for size in sizes]
        return [result + 0.0 for result in ring.grouped_allreduce(mine, op=ring.Sum, name="large")]

    def eager(factor: Any) -> Any:
        mine = [tf.ones([size]) * factor * float(2 ** ring.rank()) for size in sizes]
        return ring.grouped_allreduce(mine, op=ring.Sum)

    total = float(2 ** ring.size() - 1)
    held = [(factor, run(tf.constant(factor))) for factor in (1.0, 2.0, 3.0, 4.0) for run in (step, eager)]
    wrong = [
        (factor, size)
        for factor, results in held
        for size, result in zip(sizes, results, strict=True)
        if result.shape != (size,) or not np.all(result.numpy() == factor * total)
    ]
    # Of two dtypes, and with a factor for each input.
    mixed = ring.grouped_allreduce([tf.ones([40_000]), tf.ones([40_000], tf.float64)], op=ring.Sum, prescale_factor=0.5)
    return {"wrong": wrong, "mixed": [sorted(set(one.numpy().tolist())) for one in mixed]}


@case
def retracing() -> dict[str, Any]:
    """One rank traces a function more often than the others; names are the same all the same."""
    me, n = ring.rank(), ring.size()

    @tf.function
    def step(x: Any) -> Any:
        return ring.allreduce(tf.reduce_sum(x), op=ring.Sum) + ring.allreduce(tf.reduce_max(x), op=ring.Max)

    found = []
    for rows in (3, 4, 5):
        x = tf.ones([rows if me == 0 else 3])
        found.append(float(step(x)))
    return {"found": found, "expected": [rows + 3 * (n - 1) + 1.0 for rows in (3, 4, 5)]}


@case
def side_effects() -> dict[str, Any]:
    """What nobody looks at runs as well, every time: here the root counts on it, which does the same one by one."""
    constant = tf.constant(2.0)
    names = ["unused", "of a constant"]

    def step(x: Any) -> Any:
        ring.allreduce(x, op=ring.Sum, name=names[0])
        ring.allreduce(constant, op=ring.Sum, name=names[1])
        return x * 2.0

    run = step if ring.rank() == 0 else tf.function(step)
    for _ in range(3):
        run(tf.constant(1.0))

    @tf.function
    def barriers() -> None:
        for _ in range(3):
            ring.barrier()

    barriers()
    return {"done": True}


@case
def saved_model() -> dict[str, Any]:
    class Net(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def total(self, x: Any) -> Any:
            return ring.allreduce(x, op=ring.Sum)

    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(Net(), folder)
        loaded = tf.saved_model.load(folder)
    found = loaded.total(tf.fill([4], float(ring.rank() + 1)))
    return {"difference": distance(found, np.full(4, sum(range(1, ring.size() + 1))))}


def network(seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)])


def batches(rows: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(2)
    x = generator.standard_normal((rows, 6)).astype("float32")
    return x, (x @ generator.standard_normal((6, 3))).argmax(1)


def train(net: Any, optimizer: Any, x: Any, y: Any, tape_of: Callable[[Any], Any], *, graph: bool = True) -> None:
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


def weights(net: Any) -> list[Any]:
    return [np.array(variable) for variable in net.weights]


@case
def training() -> dict[str, Any]:
    me, n, steps, rows = ring.rank(), ring.size(), 20, 8
    x, y = batches(steps * rows * n)
    all_x, all_y = x.reshape(steps, n * rows, 6), y.reshape(steps, n * rows)
    own_x, own_y = all_x[:, me * rows : (me + 1) * rows], all_y[:, me * rows : (me + 1) * rows]
    results: dict[str, Any] = {}
    makers = {"sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9), "adam": lambda: keras.optimizers.Adam(0.01)}
    options = {"": {}, "groups": {"groups": 3}, "predivided": {"gradient_predivide_factor": 2.0}}
    for name, make in makers.items():
        alone = network()
        train(alone, make(), all_x, all_y, lambda tape: tape)
        for variant, more in options.items():
            together = network()
            ring.broadcast_variables(together.weights)
            tape_of = functools.partial(ring.DistributedGradientTape, **more)
            train(together, make(), own_x, own_y, tape_of, graph=variant != "groups")
            apart = max(distance(a, b) for a, b in zip(weights(alone), weights(together), strict=True))
            same = same_everywhere([weight.tobytes().hex() for weight in weights(together)])
            results[f"{name} {variant}"] = [apart, same]
    return results


@case
def tapes() -> dict[str, Any]:
    """Ways of using a tape."""
    me, n = ring.rank(), ring.size()
    variable, other = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    mean = np.mean(range(1, n + 1))
    with ring.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        loss = tf.reduce_sum(variable * variable) * float(me + 1)
    twice = [tape.gradient(loss, {"v": variable, "none": other})["v"].numpy() for _ in range(2)]
    nothing = tape.gradient(loss, [variable, other])[1]
    zero = tape.gradient(loss, [other], unconnected_gradients=tf.UnconnectedGradients.ZERO)[0]
    with tf.GradientTape() as plain:
        loss = variable[0] * other * float(me + 1)
    partial = ring.DistributedGradientTape(plain)
    partial.register_local_source(other)
    shared, own = partial.gradient(loss, [variable, other])
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((1,))
    layer.kernel.assign([[2.0]])
    with tf.GradientTape() as plain:
        loss = tf.reduce_sum(layer(tf.ones([1, 1]))) * float(me + 1)
    local = ring.PartialDistributedGradientTape(plain, local_layers=layer, scale_local_gradients=False)
    (of_layer,) = local.gradient(loss, [layer.kernel.value])
    sent = {}
    for name in ("fp16", "bf16"):
        with tf.GradientTape() as plain:
            loss = tf.reduce_sum(variable) * 0.5
        compressed = ring.DistributedGradientTape(plain, compression=getattr(ring.Compression, name))
        gradient = compressed.gradient(loss, variable)
        sent[name] = gradient.dtype == tf.float32 and distance(gradient, [0.5, 0.5]) == 0.0
    return {
        "twice": max(distance(found, 2 * mean * np.array([1.0, 2.0])) for found in twice),
        "nothing": nothing is None,
        "zero": float(zero) == 0.0,
        "shared": distance(
            shared.numpy() if hasattr(shared, "numpy") else tf.convert_to_tensor(shared), [3 * mean, 0.0]
        ),
        "local": distance(own, np.float32(me + 1) / np.float32(n)),
        "layer": distance(of_layer, me + 1),
        **sent,
    }


@case
def aggregation() -> dict[str, Any]:
    """Sums of three passes are reduced in the third, and begin anew."""
    me, n = ring.rank(), ring.size()
    results = {}
    for mode in ("eager", "function"):
        first, unused, second = tf.Variable(tf.zeros([4])), tf.Variable(1.0), tf.Variable(tf.zeros([]))
        aggregator = ring.GradientAggregator(3, name=f"aggregated {mode}")
        used = {"rounds": 0}

        def step(factor: Any, aggregator: Any = aggregator, variables: Any = (first, unused, second)) -> Any:
            gradients = [tf.fill([4], factor), None, factor * 2.0]
            ready, averaged = aggregator(gradients, variables)

            def apply() -> Any:
                variables[0].assign_add(averaged[0])
                variables[2].assign_add(averaged[2])
                return tf.constant(1)

            return tf.cond(ready, apply, lambda: tf.constant(0)), averaged[1] is None

        run = tf.function(step) if mode == "function" else step
        for i in range(7):
            applied, none = run(tf.constant(float((me + 1) * (i + 1))))
            used["rounds"] += int(applied)
        mean = sum(range(1, n + 1)) / n
        expected = mean * ((1 + 2 + 3) / 3 + (4 + 5 + 6) / 3)
        results[mode] = max(distance(first, np.full(4, expected)), distance(second, 2 * expected))
        results[f"{mode} rounds"] = used["rounds"] == 2 and bool(none)
    return results


@case
def slices() -> dict[str, Any]:
    """Gradients of rows: few of them as rows, many as the whole tensor, repeated ones, none on a rank."""
    me, n = ring.rank(), ring.size()
    results = {}
    cases = {
        "few": [[5 + rank, 5, 5] for rank in range(n)],
        "many": [list(range(60)) for _ in range(n)],
        "none on rank 0": [[] if rank == 0 else [1, 2] for rank in range(n)],
    }
    for name, rows in cases.items():
        for op in (ring.Sum, ring.Average):
            whole = np.zeros((100, 3))
            for rank in range(n):
                for i, row in enumerate(rows[rank]):
                    whole[row] += of(rank, len(rows[rank]) + 1, 3)[i]
            if op is ring.Average:
                whole /= n
            values = tf.constant(of(me, len(rows[me]) + 1, 3)[:-1])
            own = tf.IndexedSlices(values, tf.constant(rows[me], tf.int64), tf.constant([100, 3], tf.int64))
            for mode in ("eager", "function"):
                call = functools.partial(ring.allreduce, op=op)
                found = (tf.function(call) if mode == "function" else call)(own)
                indices = found.indices.numpy()
                dense = np.zeros((100, 3))
                dense[indices] = found.values.numpy()
                results[f"{name} {op.name} {mode}"] = distance(dense, whole)
                results[f"{name} {op.name} {mode} rows"] = len(set(indices)) == len(indices) and (
                    (len(indices) == 100) == (name == "many")
                )
    unknown = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([me]), None)
    found = ring.allreduce(unknown, op=ring.Sum)
    results["of unknown shape"] = sorted(found.indices.numpy().tolist()) == list(range(n))
    return results


@case
def two_threads() -> dict[str, Any]:
    """Two threads with tapes of their own, whose variables have the same names."""
    me, n = ring.rank(), ring.size()
    wrong: list[str] = []

    def work(thread: int, *, graph: bool) -> None:
        variable = tf.Variable(tf.zeros([1000]))

        def step(factor: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * factor)
            return ring.DistributedGradientTape(tape, op=ring.Sum, name=f"thread {thread} {graph}").gradient(
                loss, variable
            )

        run = tf.function(step) if graph else step
        for i in range(50):
            found = run(tf.constant(float((me + 1) * (i + 1) * 10**thread))).numpy()
            expected = sum(range(1, n + 1)) * (i + 1) * 10**thread
            if not (found == expected).all():
                wrong.append(f"thread {thread} step {i}: {found[0]} instead of {expected}")

    for graph in (False, True):
        threads = [threading.Thread(target=work, args=(i,), kwargs={"graph": graph}) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {"wrong": wrong}


@case
def places() -> dict[str, Any]:
    me, n = ring.rank(), ring.size()
    last = ring.add_process_set([n - 1])

    @tf.function
    def step() -> Any:
        return (
            ring.rank_op(), ring.size_op(), ring.local_rank_op(), ring.local_size_op(),
            ring.process_set_included_op(last), ring.size_op() * 2,
        )  # fmt: skip

    expected = [me, n, ring.local_rank(), ring.local_size(), int(me == n - 1), 2 * n]
    found = [int(value) for value in step()]
    eager = [int(ring.rank_op()), int(ring.size_op())]
    ring.remove_process_set(last)
    return {"found": found == expected, "eager": eager == [me, n]}


@case
def batch_norm() -> dict[str, Any]:
    me, n, rows = ring.rank(), ring.size(), 8
    x = np.random.default_rng(7).standard_normal((rows * n, 4, 3)).astype("float32")
    mask = np.random.default_rng(8).random((rows * n, 4)) < 0.7
    results: dict[str, Any] = {}
    for name, used in {"plain": None, "masked": mask}.items():
        whole, own = keras.layers.BatchNormalization(), ring.SyncBatchNormalization()
        mine = slice(me * rows, (me + 1) * rows)
        for layer in (whole, own):
            layer.build(x.shape)
        for _ in range(3):
            expected = whole(tf.constant(x), training=True, mask=used)
            with tf.GradientTape() as tape:
                found = own(tf.constant(x[mine]), training=True, mask=None if used is None else used[mine])
                loss = tf.reduce_sum(found * found * found)
            gradient = ring.allreduce(tape.gradient(loss, own.gamma.value), op=ring.Sum, name="gamma")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(whole(tf.constant(x), training=True, mask=used) ** 3)
        results[name] = distance(found, expected[mine])
        results[f"{name} variance"] = distance(own.moving_variance, ring.broadcast(own.moving_variance.value, 0))
        if used is None:
            results["gradient"] = distance(gradient, tape.gradient(loss, whole.gamma.value)) / 1e3
    return results


@case
def sessions() -> dict[str, Any]:
    """A graph as TensorFlow 1 has it: only what a session is asked for runs."""
    me, root = ring.rank(), ring.size() - 1
    found = {}
    for kind, use_resource in (("resource", True), ("reference", False)):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            variables = [
                tf.compat.v1.get_variable(f"v{i}", initializer=tf.fill([3], me + 10.0 * i), use_resource=use_resource)
                for i in range(3)
            ]
            session.run(tf.compat.v1.global_variables_initializer())
            result = ring.broadcast_(variables[0], root)
            found[f"{kind} result"] = session.run(tf.identity(result)).tolist() == [root] * 3
            session.run(ring.broadcast_variables(variables[1:], root))
            expected = [[root + 10.0 * i] * 3 for i in range(3)]
            found[f"{kind} variables"] = [value.tolist() for value in session.run(variables)] == expected
    return found


@case
def mistakes() -> dict[str, Any]:
    me = ring.rank()
    found: dict[str, str] = {}

    def attempt(what: str, function: Callable[[], Any]) -> None:
        try:
            function()
            found[what] = ""
        except Exception as error:
            typed = ring.as_ringcore_error(error)
            found[what] = f"{type(error).__name__}: {error}"
            found[f"{what} typed"] = f"{type(typed).__name__}: {typed}"

    attempt("shapes", lambda: ring.allreduce(tf.zeros([2 + me]), name="shapes"))
    attempt("shapes in a function", lambda: tf.function(ring.allreduce)(tf.zeros([2 + me]), name="shapes"))
    attempt("integers", lambda: ring.allreduce(tf.constant([1, 2])))
    attempt("complex", lambda: ring.allreduce(tf.constant([1j])))
    attempt("strings", lambda: ring.broadcast(tf.constant("text"), 0))
    attempt("root", lambda: ring.broadcast(tf.zeros([2]), 99))
    attempt("splits", lambda: ring.alltoall(tf.zeros([3]), [1] * ring.size() + [7]))
    attempt("negative", lambda: ring.alltoall(tf.zeros([3]), [-1] + [1] * (ring.size() - 1)))
    attempt("gradient", gradient_of_max)
    attempt("tape", lambda: ring.DistributedGradientTape("tape"))
    attempt("twice", lambda: ring.DistributedGradientTape(ring.DistributedGradientTape(tf.GradientTape())))
    attempt("xla", lambda: tf.function(ring.allreduce, jit_compile=True)(tf.zeros([2]), name="xla"))
    attempt("adasum", lambda: tf.function(ring.allreduce)(tf.zeros([2]), op=ring.Adasum))
    attempt("join", tf.function(ring.join))
    return found


def gradient_of_max() -> Any:
    x = tf.ones([2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = ring.allreduce(x, op=ring.Max, name="max")
    return tape.gradient(y, x)


@case
def lost() -> dict[str, Any]:
    """Rank 1 is killed while the others wait; afterwards the process starts anew with the same functions."""
    import signal

    @tf.function
    def step(x: Any) -> Any:
        return ring.allreduce(x, op=ring.Sum)

    step(tf.ones([3]))
    if ring.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    found = {}
    try:
        for _ in range(100):
            step(tf.ones([3]))
    except tf.errors.AbortedError as error:
        found["function"] = f"{type(ring.as_ringcore_error(error)).__name__}: {ring.as_ringcore_error(error)}"
    try:
        ring.allreduce(tf.ones([3]))
    except ring_error() as error:
        found["eager"] = f"{type(error).__name__}: {error}"
    ring.shutdown()
    try:
        step(tf.ones([3]))
    except tf.errors.FailedPreconditionError as error:
        found["shut down"] = str(ring.as_ringcore_error(error))
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    ring.init()
    found["again"] = step(tf.ones([3])).numpy().tolist()
    return found


def ring_error() -> Any:
    import ringcore

    return ringcore.PeerLostError


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    tf.config.threading.set_inter_op_parallelism_threads(1)
    ring.init()
    rank = ring.rank()
    for name in sys.argv[2:]:
        (folder / f"{name}.{rank}.json").write_text(json.dumps(CASES[name]()))
