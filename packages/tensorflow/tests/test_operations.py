"""The ops: in eager mode, in functions, loops and graphs, and what is told of mistakes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringcore
import ringcore_tensorflow as ring
import tensorflow as tf
from support import ranks
from support.on_ranks import THREE_OVER_TCP, TWO, on
from support.values import distance


@on(TWO, THREE_OVER_TCP)
def test_loops_conditions_and_functions_that_are_called_twice() -> None:
    """Iterations of loops run beside each other."""
    n = ring.size()
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

    mine = tf.constant(float(ring.rank() + 1))
    assert distance(loop(mine), np.arange(50) * total) == 0.0
    assert distance(twice(mine), 6 * total) == 0.0
    assert distance(branch(mine, tf.constant(True)), total) == 0.0
    assert distance(branch(mine, tf.constant(False)), 10 * n) == 0.0
    assert distance(gradient_of_loop(mine), 8.0) == 0.0


@on(TWO, THREE_OVER_TCP)
def test_hundreds_are_in_flight_on_one_thread_in_opposite_order() -> None:
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
    for _ in range(5):
        for i, result in enumerate(step(tensors)):
            assert distance(result, np.full(1 + 7 * i, sum(range(1, n + 1)) * i)) == 0.0


@on(TWO, THREE_OVER_TCP)
def test_results_in_the_engines_memory() -> None:
    """Of all sizes in one group, kept over several steps, fed to other ops."""
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
    for factor, results in held:
        for size, result in zip(sizes, results, strict=True):
            assert result.shape == (size,)
            assert np.all(result.numpy() == factor * total)
    # Of two dtypes, and with a factor for each input.
    mixed = [tf.ones([40_000]), tf.ones([40_000], tf.float64)]
    for result in ring.grouped_allreduce(mixed, op=ring.Sum, prescale_factor=0.5):
        assert set(result.numpy().tolist()) == {ring.size() / 2}


@on(TWO, THREE_OVER_TCP)
def test_names_do_not_depend_on_how_often_a_rank_traces() -> None:
    me, n = ring.rank(), ring.size()

    @tf.function
    def step(x: Any) -> Any:
        return ring.allreduce(tf.reduce_sum(x), op=ring.Sum) + ring.allreduce(tf.reduce_max(x), op=ring.Max)

    for rows in (3, 4, 5):
        assert float(step(tf.ones([rows if me == 0 else 3]))) == rows + 3 * (n - 1) + 1.0


@on(TWO, THREE_OVER_TCP)
def test_what_nobody_looks_at_runs_as_well() -> None:
    """Every time: here the root counts on it, which does the same one by one."""
    constant = tf.constant(2.0)

    def step(x: Any) -> Any:
        ring.allreduce(x, op=ring.Sum, name="unused")
        ring.allreduce(constant, op=ring.Sum, name="of a constant")
        return x * 2.0

    run = step if ring.rank() == 0 else tf.function(step)
    for _ in range(3):
        run(tf.constant(1.0))

    @tf.function
    def barriers() -> None:
        for _ in range(3):
            ring.barrier()

    barriers()


@on(TWO, THREE_OVER_TCP)
def test_collectives_in_a_saved_model() -> None:
    class Net(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def total(self, x: Any) -> Any:
            return ring.allreduce(x, op=ring.Sum)

    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(Net(), folder)
        loaded = tf.saved_model.load(folder)
    found = loaded.total(tf.fill([4], float(ring.rank() + 1)))
    assert distance(found, np.full(4, sum(range(1, ring.size() + 1)))) == 0.0


@on(TWO, THREE_OVER_TCP)
def test_graphs_look_up_ranks_when_they_run() -> None:
    me, n = ring.rank(), ring.size()
    last = ring.add_process_set([n - 1])

    @tf.function
    def step() -> Any:
        return (
            ring.rank_op(), ring.size_op(), ring.local_rank_op(), ring.local_size_op(),
            ring.process_set_included_op(last), ring.size_op() * 2,
        )  # fmt: skip

    expected = [me, n, ring.local_rank(), ring.local_size(), int(me == n - 1), 2 * n]
    assert [int(value) for value in step()] == expected
    assert [int(ring.rank_op()), int(ring.size_op())] == [me, n]
    ring.remove_process_set(last)


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("use_resource", [True, False])
def test_a_session_gets_what_the_root_has(use_resource: bool) -> None:
    """A graph as TensorFlow 1 has it: only what a session is asked for runs."""
    me, root = ring.rank(), ring.size() - 1
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.get_variable(f"v{i}", initializer=tf.fill([3], me + 10.0 * i), use_resource=use_resource)
            for i in range(3)
        ]
        session.run(tf.compat.v1.global_variables_initializer())
        result = ring.broadcast_(variables[0], root)
        assert session.run(tf.identity(result)).tolist() == [root] * 3
        session.run(ring.broadcast_variables(variables[1:], root))
        expected = [[root + 10.0 * i] * 3 for i in range(3)]
        assert [value.tolist() for value in session.run(variables)] == expected


def gradient_of_max() -> Any:
    x = tf.ones([2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = ring.allreduce(x, op=ring.Max, name="max")
    return tape.gradient(y, x)


def tape_of_a_tape() -> Any:
    return ring.DistributedGradientTape(ring.DistributedGradientTape(tf.GradientTape()))


def dealt(splits: list[int]) -> Any:
    """Rank 0 alone is wrong; the others look at no splits."""
    return ring.scatter(tf.zeros([3]), 0, splits, name="dealt")


MISTAKES: dict[str, Callable[[], Any]] = {
    "convert the tensor to a float dtype": lambda: ring.allreduce(tf.constant([1, 2])),
    "complex128; convert it to one of uint8": lambda: ring.allreduce(tf.constant([1j])),
    "dtype string": lambda: ring.broadcast(tf.constant("text"), 0),
    "pass a root_rank of the process set": lambda: ring.broadcast(tf.zeros([2]), 99),
    "give one split for each rank": lambda: ring.alltoall(tf.zeros([3]), [1] * ring.size() + [7]),
    "not -1": lambda: ring.alltoall(tf.zeros([3]), [-1] + [1] * (ring.size() - 1)),
    "not -2|rank 0 gave . splits": lambda: dealt([-2] + [1] * (ring.size() - 1)),
    r"add up to (9|10) for 3 rows": lambda: dealt([1] * ring.size() + [7]),
    "op=MAX has no gradient": gradient_of_max,
    "a tf.GradientTape is needed, not str": lambda: ring.DistributedGradientTape("tape"),
    "wrap it once": tape_of_a_tape,
    "no compression to integers": lambda: ring.allreduce(tf.zeros([2]), op=ring.Adasum, compression="int8"),
    "eager mode only": lambda: tf.function(ring.allreduce)(tf.zeros([2]), op=ring.Adasum),
    "outside of tf.function": tf.function(ring.join),
}


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("told", MISTAKES)
def test_mistakes_are_explained(told: str) -> None:
    with pytest.raises(Exception, match=told):
        MISTAKES[told]()


@on(TWO, THREE_OVER_TCP)
def test_xla_is_refused_with_what_to_do() -> None:
    with pytest.raises(Exception, match=r".") as caught:
        tf.function(ring.allreduce, jit_compile=True)(tf.zeros([2]), name="xla")
    assert "jit_compile=False" in str(ring.as_ringcore_error(caught.value))


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("call", [ring.allreduce, tf.function(ring.allreduce)], ids=["eager", "function"])
def test_tensors_that_differ_between_ranks(call: Any) -> None:
    with pytest.raises(Exception, match="was submitted differently") as caught:
        call(tf.zeros([2 + ring.rank()]), name="shapes")
    error = ring.as_ringcore_error(caught.value)
    assert isinstance(error, ringcore.MismatchError)
    assert str(error).startswith("'shapes' was submitted differently: rank 0:")
    assert "Remedy" in str(error)


def test_a_killed_rank_is_told_in_functions_and_eagerly_and_all_starts_anew(tmp_path: Path) -> None:
    def lost() -> dict[str, object]:
        """Rank 1 is killed while the others wait; afterwards the process starts anew with the same functions."""
        import ringcore_tensorflow as ring
        import tensorflow as tf

        ring.init()
        step = tf.function(lambda x: ring.allreduce(x, op=ring.Sum))
        step(tf.ones([3]))
        if ring.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # noqa: F821 - of the program's head

        def told(call: object) -> list[str]:
            try:
                for _ in range(100):
                    call(tf.ones([3]))
            except Exception as error:
                own = ring.as_ringcore_error(error)
                return [type(error).__name__, type(own).__name__, str(own)]
            return []

        found = {"function": told(step), "eager": told(ring.allreduce)}
        ring.shutdown()
        found["shut down"] = told(step)
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
        ring.init()
        return {**found, "again": step(tf.ones([3])).numpy().tolist()}

    with ranks.started(lost, 2, tmp_path) as job:
        survivor, _ = job.wait(300)
    assert survivor.exit_code == 0, survivor.stderr
    found = survivor.result
    assert found["function"][:2] == ["AbortedError", "PeerLostError"]
    assert found["eager"][:2] == ["PeerLostError", "PeerLostError"]
    assert "rank 1" in found["function"][2]
    assert "rank 1" in found["eager"][2]
    assert found["shut down"][0] == "FailedPreconditionError"
    assert "init()" in found["shut down"][2]
    assert found["again"] == [1.0, 1.0, 1.0]
