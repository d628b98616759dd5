"""The collectives inside compiled programs: results, derivatives, loops, batches, and the order of the calls."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import ringcore
import ringcore_jax as ring
from support import ranks
from support.on_ranks import TWO, on
from support.rank import await_mark, mark

JOBS = pytest.mark.parametrize(
    ("size", "transport"),
    [(2, "shm"), *(pytest.param(*job, marks=pytest.mark.long) for job in ((3, "shm"), (2, "tcp")))],
)


def run(function, size: int, folder: Path, *args, **env: str) -> list:
    return ranks.run(function, size, folder, *args, env={"JAX_PLATFORMS": "cpu", **env})


def every_collective_on_every_dtype() -> list:
    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring
    from conformance.payload import payload, reduced

    jax.config.update("jax_enable_x64", True)
    ring.init()
    me, size, wrong = ring.rank(), ring.size(), []

    def check(what: str, got, expected) -> None:
        got = np.asarray(got)
        if got.dtype != expected.dtype or got.shape != expected.shape or not np.array_equal(got, expected):
            wrong.append(f"{what}: {got} instead of {expected}")

    def step(x, scalar):
        return {
            "sum": ring.allreduce({"x": x, "scalar": scalar}, op=ring.Sum),
            "max": ring.allreduce(x, op=ring.Max),
            "gathered": ring.allgather({"x": x, "scalar": scalar}),
            "scattered": ring.reducescatter(x, op=ring.Sum),
            "scattered unevenly": ring.reducescatter(x[1:], op=ring.Sum),
            "exchanged": ring.alltoall(x),
            "sent": ring.broadcast({"x": x, "empty": x[:0]}, size - 1),
            "dealt": ring.scatter(x, size - 1),
        }

    for dtype in ringcore.adapter.DTYPE_CODES:
        parts = [payload(rank, (2 * size, 3), dtype) for rank in range(size)]
        scalars = [part[0, 0] for part in parts]
        got = jax.jit(step)(jnp.asarray(parts[me]), jnp.asarray(scalars[me]))
        total = reduced(parts, "sum")
        check(f"sum of {dtype}", got["sum"]["x"], total)
        check(f"sum of scalars of {dtype}", got["sum"]["scalar"], reduced([np.asarray(s) for s in scalars], "sum"))
        check(f"max of {dtype}", got["max"], reduced(parts, "max"))
        check(f"gathered {dtype}", got["gathered"]["x"], np.concatenate(parts))
        check(f"gathered scalars of {dtype}", got["gathered"]["scalar"], np.stack(scalars))
        check(f"scattered {dtype}", got["scattered"], total[2 * me : 2 * me + 2])
        begin = 1 + 2 * me  # all ranks but the last have two rows
        check(f"unevenly scattered {dtype}", got["scattered unevenly"], total[begin : min(begin + 2, 2 * size)])
        check(f"exchanged {dtype}", got["exchanged"], np.concatenate([part[2 * me : 2 * me + 2] for part in parts]))
        check(f"sent {dtype}", got["sent"]["x"], parts[-1])
        check(f"dealt {dtype}", got["dealt"], parts[-1][2 * me : 2 * me + 2])
        check(f"sent nothing of {dtype}", got["sent"]["empty"], parts[-1][:0])
    return wrong


@JOBS
def test_every_collective_on_every_dtype(tmp_path: Path, size: int, transport: str) -> None:
    assert run(every_collective_on_every_dtype, size, tmp_path, RINGCORE_TRANSPORT=transport) == [[]] * size


def derivatives() -> list:
    """Against the derivative of the job's loss, computed from all ranks' inputs by one process without ringcore."""
    import functools

    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring

    jax.config.update("jax_enable_x64", True)
    ring.init()
    me, size, wrong = ring.rank(), ring.size(), []
    rows = 2 * size
    everybody = jax.random.normal(jax.random.key(0), (size, rows, 3), jnp.float64)
    weights = jax.random.normal(jax.random.key(1), (size, size * rows, 3), jnp.float64)  # each rank's loss is another

    def shares(total, count):
        sizes = [count // size + (rank < count % size) for rank in range(size)]
        return jnp.split(total, np.cumsum(sizes)[:-1].tolist())

    # What a rank calls, and what all of them get from it.
    cases = {
        "sum": (lambda x: ring.allreduce(x, op=ring.Sum), lambda xs: [xs.sum(0)] * size),
        "scaled average": (
            lambda x: ring.allreduce(x, prescale_factor=0.5, postscale_factor=3.0),
            lambda xs: [1.5 * xs.mean(0)] * size,
        ),
        "group": (
            lambda x: ring.allreduce({"a": x, "b": x[0] * 2}, op=ring.Sum)["a"],
            lambda xs: [xs.sum(0)] * size,
        ),
        "allgather": (ring.allgather, lambda xs: [xs.reshape(-1, 3)] * size),
        "broadcast": (lambda x: ring.broadcast(x, size - 1), lambda xs: [xs[-1]] * size),
        "scatter": (
            lambda x: ring.scatter(x, size - 1),
            lambda xs: [xs[-1][2 * rank : 2 * rank + 2] for rank in range(size)],
        ),
        "reducescatter": (
            lambda x: ring.reducescatter(x, prescale_factor=2.0), lambda xs: shares(2.0 * xs.mean(0), rows),
        ),
        "uneven reducescatter": (
            lambda x: ring.reducescatter(x[1:], op=ring.Sum), lambda xs: shares(xs[:, 1:].sum(0), rows - 1),
        ),
        "alltoall": (
            ring.alltoall,
            lambda xs: [jnp.concatenate([x[2 * rank : 2 * rank + 2] for x in xs]) for rank in range(size)],
        ),
    }  # fmt: skip

    def loss(rank, y):
        return (weights[rank, : y.shape[0]] * y**3).sum()

    def along(function, x, direction):
        return jax.jvp(function, (x,), (direction,))[1]

    def second_derivatives(own, x, direction):
        """The Hessian of the job's loss times a direction, in which all ranks move; found in two ways."""
        gradient = jax.grad(own)
        return along(gradient, x, direction), jax.grad(lambda x: (gradient(x) * direction).sum())(x)

    directions = jax.random.normal(jax.random.key(2), (2, *everybody.shape), jnp.float64)

    for what, (call, model) in cases.items():

        def whole(xs, model=model):
            return sum(loss(rank, y) for rank, y in enumerate(model(xs)))

        expected = jax.grad(whole)(everybody)
        own = lambda x, call=call: loss(me, call(x))  # noqa: E731
        ways = {"eager": jax.grad(own), "jit": jax.jit(jax.grad(own)), "remat": jax.jit(jax.grad(jax.checkpoint(own)))}
        for way, gradient in ways.items():
            error = float(jnp.abs(gradient(everybody[me]) - expected[me]).max())
            # A handful of roundings of numbers below a thousand.
            if not error < 1e-11:
                wrong.append(f"{way} {what}: {error}")
        direction = jnp.ones_like(everybody)
        _, moved = jax.jvp(call, (everybody[me],), (direction[me],))
        _, expected_moved = jax.jvp(lambda xs, model=model: model(xs)[me], (everybody,), (direction,))
        if not float(jnp.abs(moved - expected_moved).max()) < 1e-11:
            wrong.append(f"forward {what}")
        if size > 2:  # the second ones take long to compile
            continue
        expected = jax.vmap(lambda v, whole=whole: along(jax.grad(whole), everybody, v)[me])(directions)
        compiled = jax.jit(jax.vmap(functools.partial(second_derivatives, own), (None, 0)))
        for way, second in zip(("forward", "reverse"), compiled(everybody[me], directions[:, me]), strict=True):
            # Sums of some tens of numbers below a thousand, each rounded.
            if not float(jnp.abs(second - expected).max()) < 1e-10:
                wrong.append(f"{way} over reverse of {what}")
    return wrong


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.long), 3])
def test_derivatives_are_those_of_the_sum_of_all_losses(tmp_path: Path, size: int) -> None:
    assert run(derivatives, size, tmp_path) == [[]] * size


def broadcasts_and_checkpoints() -> list:
    """Derivatives of broadcasts, of which only the root has any, beside those of a checkpoint."""
    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring

    ring.init()

    def own(x):
        return (ring.broadcast(x, 1) ** 3).sum() * (1 + ring.rank())

    def along(function, x, v):
        return jax.jvp(function, (x,), (v,))[1]

    def over(gradient, x, v):
        return jax.grad(lambda x: (gradient(x) * v).sum())(x)

    @jax.jit
    def seconds(x, v):
        gradient = jax.grad(own)
        plain = along(gradient, x, v), over(gradient, x, v), jax.grad(lambda x: along(own, x, v))(x)
        return *plain, over(jax.grad(jax.checkpoint(own)), x, v)

    return [value[0].item() for value in seconds(jnp.full(4, 1.0 + ring.rank()), jnp.ones(4))]


def test_ranks_keep_one_order_of_broadcasts_gradients(tmp_path: Path) -> None:
    # Three times the sum of cubes, at the root's 2.
    assert run(broadcasts_and_checkpoints, 2, tmp_path, RINGCORE_TIMEOUT_S="20") == [[0.0] * 4, [36.0] * 4]


def numbers() -> tuple[jax.Array, np.ndarray]:
    """An array of this rank's, and the sum of all ranks'."""
    n = ring.size()
    own = np.arange(6.0).reshape(3, 2)
    return jnp.asarray(own, jnp.float32) + ring.rank(), n * own + sum(range(n))


@on(TWO)
def test_scans_and_their_gradients() -> None:
    x, total = numbers()

    def scanned(x):
        def body(carry, _):
            carry = ring.allreduce(carry) * 2
            return carry, ring.allreduce(carry.sum(), op=ring.Max)

        return jax.lax.scan(body, x, None, length=5, unroll=2)

    last, largest = jax.jit(scanned)(x)
    np.testing.assert_allclose(last, 32 * total / 2, rtol=1e-6)
    np.testing.assert_allclose(largest, 2 ** np.arange(1, 6) * total.sum() / 2, rtol=1e-6)
    doubling = lambda carry, _: (ring.allreduce(carry) * 2, None)  # noqa: E731
    through = jax.jit(jax.grad(lambda x: jax.lax.scan(doubling, x, None, length=5)[0].sum()))(x)
    np.testing.assert_array_equal(through, np.full((3, 2), 32.0))


@on(TWO)
def test_loops_branches_and_functions_that_are_called_twice() -> None:
    x, total = numbers()
    powers = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: ring.allreduce(y, op=ring.Sum), x))(x)
    np.testing.assert_array_equal(powers, total * 2**2)
    doubled = jax.jit(lambda v: ring.allreduce(v, name="inner"), inline=True)
    once, twice = jax.jit(lambda x: (doubled(x), doubled(x * 2)))(x)
    np.testing.assert_allclose(once, total / 2)
    np.testing.assert_allclose(twice, 2 * once)
    again = jax.jit(lambda v: ring.allreduce(v) * 2)
    np.testing.assert_allclose(jax.jit(lambda x: again(again(again(x))))(x), 8 * total / 2)
    branch = jax.jit(lambda x, yes: jax.lax.cond(yes, lambda v: ring.allreduce(v, op=ring.Sum), lambda v: v, x))
    np.testing.assert_array_equal(branch(x, True), total)
    np.testing.assert_array_equal(branch(x, False), x)


@on(TWO)
def test_batches() -> None:
    x, total = numbers()
    np.testing.assert_array_equal(jax.vmap(lambda v: ring.allreduce(v, op=ring.Sum))(x), total)
    scattered = jax.vmap(ring.scatter, in_axes=1, out_axes=1)(x[:2])
    np.testing.assert_array_equal(scattered, ring.scatter(x[:2]))
    along_columns = jax.jit(jax.vmap(ring.allgather, in_axes=1, out_axes=1))(x)
    np.testing.assert_array_equal(along_columns, ring.allgather(x))
    group = jax.vmap(lambda a, b: ring.allreduce([a, b], op=ring.Sum)[0], in_axes=(0, None))(x, x)
    np.testing.assert_array_equal(group, total)


def order(timeline: str) -> list:
    """XLA prefers other orders on the two ranks: results are needed, and operands ready, in reverse."""
    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring

    ring.init()
    me, count = ring.rank(), 12

    def slow(x, steps):
        return jax.lax.fori_loop(0, steps, lambda _, y: jnp.cos(y), x)

    @jax.jit
    def step(x, steps):
        results = [
            ring.allreduce(jnp.cumsum(slow(x + i, steps[i])), op=ring.Sum, name=f"tensor.{i}") for i in range(count)
        ]
        return results if me == 0 else results[::-1]

    x = jnp.ones(20000)
    steps = jnp.arange(count) * 20
    steps = steps if me == 0 else steps[::-1]
    jax.block_until_ready(step(x, steps))
    ring.start_timeline(timeline)
    for _ in range(5):
        results = step(x, steps)
    results = results if me == 0 else results[::-1]
    outcome = [float(result[-1]) for result in results]
    ring.stop_timeline()
    return outcome


def test_ranks_keep_one_order_where_xla_would_take_two(tmp_path: Path) -> None:
    timeline = tmp_path / "timeline.json"
    first, second = run(order, 2, tmp_path, str(timeline), RINGCORE_TIMEOUT_S="10")
    assert first == second
    events = json.loads(timeline.read_text())["traceEvents"]
    for rank in range(2):
        begun = [event for event in events if event["ph"] == "X" and event["pid"] == rank]
        begun = [event for event in begun if event["name"] == "negotiate" and "tensor." in event["args"]["tensor"]]
        names = [event["args"]["tensor"] for event in sorted(begun, key=lambda event: event["ts"])]
        assert names == [f"tensor.{i}" for i in range(12)] * 5


def readiness() -> list:
    """Rank 0 has one operand at once and the other only after the first exchange; rank 1 the other way round."""
    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring

    ring.init()
    late = "second" if ring.rank() == 0 else "first"

    def hold(name, x):
        if name == late:
            await_mark("early", 1 - ring.rank())
        else:
            mark("early")
        return x

    @jax.jit
    def step(x):
        operands = [
            jax.pure_callback(lambda v, name=name: hold(name, v), jax.ShapeDtypeStruct(x.shape, x.dtype), x)
            for name in ("first", "second")
        ]
        return [ring.allreduce(operand, op=ring.Sum).sum() for operand in operands]

    return [float(value) for value in step(jnp.ones(3))]


def test_operands_may_be_ready_in_another_order_on_each_rank(tmp_path: Path) -> None:
    assert run(readiness, 2, tmp_path, RINGCORE_TIMEOUT_S="20") == [[6.0, 6.0]] * 2


def retraced() -> list:
    """Rank 1 compiles for every step, rank 0 once; names without a name still meet."""
    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring

    ring.init()

    @jax.jit
    def step(batch):
        return ring.allreduce(batch.sum()), ring.allreduce({"sum": batch.sum() * 2, "count": jnp.ones(2)})

    found = []
    for number in range(4):
        batch = jnp.ones(8 if ring.rank() == 0 else 8 + number)
        mean, more = step(batch)
        found.append([float(mean), float(more["sum"]), float(more["count"].sum())])
    return found


def test_one_rank_may_compile_more_often(tmp_path: Path) -> None:
    expected = [[8 + number / 2, 16 + number, 2.0] for number in range(4)]
    assert run(retraced, 2, tmp_path) == [expected] * 2


@on(TWO)
def test_arrays_outside_programs() -> None:
    me, x = ring.rank(), jnp.arange(4.0) + ring.rank()
    handles = [ring.allreduce_async({"x": x}, op=ring.Sum), ring.allgather_async(x[: me + 1])]
    handles += [ring.reducescatter_async(x), ring.alltoall_async(jnp.arange(2)), ring.broadcast_async(x, 1)]
    summed, gathered, scattered, exchanged, sent = [ring.synchronize(handle) for handle in handles]
    np.testing.assert_array_equal(x, np.arange(4.0) + me)
    np.testing.assert_array_equal(summed["x"], 2 * np.arange(4.0) + 1)
    np.testing.assert_array_equal(gathered, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(scattered, np.arange(4.0)[2 * me : 2 * me + 2] + 0.5)
    np.testing.assert_array_equal(exchanged, [me, me])
    np.testing.assert_array_equal(sent, np.arange(4.0) + 1)
    assert all(isinstance(y, jax.Array) for y in (summed["x"], gathered, scattered, exchanged, sent))


@on(TWO)
def test_splits_compression_and_empty_trees_outside_programs() -> None:
    me = ring.rank()
    rows, received = ring.alltoall(jnp.arange(me + 1), [0, me + 1])
    assert [*received] == ([1, 2] if me == 1 else [0, 0])
    np.testing.assert_array_equal(rows, [0, 0, 1] if me == 1 else [])
    half = ring.allreduce({"w": jnp.asarray([1.0, 1.0 + 2.0**-9])}, compression=ring.Compression.bf16)
    assert half["w"].dtype == jnp.float32
    assert float(half["w"][1]) == 1.0
    # Orthogonal vectors add.
    np.testing.assert_allclose(ring.allreduce(jnp.eye(2)[me], op=ring.Adasum), 1.0)
    assert ring.allreduce([]) == []
    assert ring.synchronize(ring.allreduce_async({})) == {}
