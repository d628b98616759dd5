"""One rank of the TensorFlow benchmark; `run.py` starts it under ringrun.

    python tensorflow_rank.py STEPS ROUNDS

Steps of a loop with a tape, in one process by turns: "alone" (every rank trains, nobody communicates), "ringcore"
(DistributedGradientTape), and "mwms" (the collectives of MultiWorkerMirroredStrategy, over gRPC). Then 160 variables of
160 K floats, whose gradients cost nothing to make, and what an op costs. Rank 0 prints a JSON line: milliseconds a
step, the median of each round, and microseconds an op. In the end the ranks of "ringcore" must hold the same weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import ringcore
import ringcore_tensorflow as ring
import tensorflow as tf

LAYERS, WIDTH, BATCH = 30, 912, 8  # 25 M parameters in 60 variables
MANY, FLOATS = 160, 160_000
OPS = 100


def strategy_of_tensorflow() -> Any:
    """Its processes meet at ports that are free."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        workers = [f"localhost:{port}" for port in ring.allgather_object(probe.getsockname()[1])]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": ring.rank()}}
    )
    return tf.distribute.MultiWorkerMirroredStrategy()


def net(variables: list[Any], x: Any) -> Any:
    for weights, bias in zip(variables[::2], variables[1::2], strict=True):
        x = tf.nn.relu(x @ weights + bias)
    return tf.reduce_mean(x * x)


def stepper(variables: list[Any], how: str, strategy: Any) -> Callable[[Any], None]:
    """One step of gradient descent."""

    def gradients(x: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = net(variables, x)
        wrapped = ring.DistributedGradientTape(tape) if how == "ringcore" else tape
        found: list[Any] = wrapped.gradient(loss, variables)
        if how == "mwms":
            found = list(tf.distribute.get_replica_context().all_reduce("MEAN", found))
        return found

    def step(x: Any) -> None:
        averaged = strategy.run(gradients, args=(x,)) if how == "mwms" else gradients(x)
        for variable, gradient in zip(variables, averaged, strict=True):
            variable.assign_sub(1e-4 * gradient)

    return tf.function(step)


def rounds_of(steps: dict[str, Callable[[], Any]], count: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds a step of each way, by turns: the median of each round."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            ring.barrier()
            taken = []
            for _ in range(count):
                begin = time.perf_counter()
                step()
                taken.append((time.perf_counter() - begin) * 1e3)
            found[name].append(statistics.median(taken))
    return found


def many_variables(count: int, rounds: int) -> dict[str, list[float]]:
    """Gradients that cost nothing: what is left is their reduction; beside it that of as many arrays by the core."""
    variables = [tf.Variable(tf.ones([FLOATS])) for _ in range(MANY)]
    arrays = [np.ones(FLOATS, np.float32) for _ in range(MANY)]

    def reduction(distributed: bool) -> Callable[[], None]:
        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(variable) for variable in variables])
            wrapped = ring.DistributedGradientTape(tape, name="many") if distributed else tape
            for variable, gradient in zip(variables, wrapped.gradient(loss, variables), strict=True):
                variable.assign_sub(1e-9 * gradient)

        return tf.function(step)

    ways = {
        "alone": reduction(distributed=False),
        "ringcore": reduction(distributed=True),
        "core": lambda: ringcore.grouped_allreduce_(arrays, op=ringcore.Average, name="core"),
    }
    return rounds_of(ways, count, rounds)


def ops(rounds: int) -> dict[str, list[float]]:
    """Microseconds of an allreduce of two floats: in eager mode, and in a function one after the other and at once."""
    small = tf.ones([2])

    @tf.function
    def chain(x: Any) -> Any:
        for _ in range(OPS):
            x = ring.allreduce(x, op=ring.Max)
        return x

    @tf.function
    def independent(x: Any) -> Any:
        return tf.add_n([ring.allreduce(x, op=ring.Max) for _ in range(OPS)])

    @tf.function
    def nothing(x: Any) -> Any:
        return tf.add_n([tf.nn.relu(x + float(i)) for i in range(OPS)])

    def eager() -> None:
        for _ in range(OPS):
            ring.allreduce(small, op=ring.Max)

    ways = {
        "eager": eager, "chain": lambda: chain(small), "independent": lambda: independent(small),
        "an add and a relu instead": lambda: nothing(small),
    }  # fmt: skip
    return {name: [value * 1e3 / OPS for value in values] for name, values in rounds_of(ways, 10, rounds).items()}


def main() -> None:
    """Measure all."""
    count, rounds = int(sys.argv[1]), int(sys.argv[2])
    ring.init()
    cores = sorted(os.sched_getaffinity(0))
    if ring.size() <= len(cores):
        os.sched_setaffinity(0, {cores[ring.rank()]})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    strategy = strategy_of_tensorflow()
    generator = np.random.default_rng(0)
    shapes = [(WIDTH, WIDTH), (WIDTH,)] * LAYERS
    start = [generator.standard_normal(shape).astype("float32") / 22 for shape in shapes]
    x = tf.constant(np.random.default_rng(ring.rank()).standard_normal((BATCH, WIDTH)).astype("float32"))
    held = {how: [tf.Variable(value) for value in start] for how in ("alone", "ringcore", "mwms")}
    steps = {how: stepper(variables, how, strategy) for how, variables in held.items()}
    taken = rounds_of({how: lambda step=step: step(x) for how, step in steps.items()}, count, rounds)
    weights = b"".join(variable.numpy().tobytes() for variable in held["ringcore"])
    if len(set(ring.allgather_object(hashlib.sha256(weights).hexdigest()))) > 1:
        raise SystemExit("the ranks' weights differ")
    pairs = zip(held["ringcore"], held["mwms"], strict=True)
    apart = max(float(tf.reduce_max(tf.abs(ours - theirs))) for ours, theirs in pairs)
    if apart > 1e-4:
        raise SystemExit(f"ringcore's weights are {apart} from those of MultiWorkerMirroredStrategy")
    line = {"milliseconds": taken, "many": many_variables(count, rounds), "microseconds": ops(rounds)}
    if ring.rank() == 0:
        print(json.dumps(line), flush=True)
    ring.barrier()
    os._exit(0)  # TensorFlow's coordination service complains when its processes end one after the other


if __name__ == "__main__":
    main()
