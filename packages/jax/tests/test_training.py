"""Training with optax on several ranks, and what happens when it goes wrong."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import ringcore
import ringcore_jax as ring
from ringcore_jax import in_python
from support import ranks
from support.on_ranks import TWO, on
from support.rank import caught, mark

# The report comes within milliseconds or the heartbeat's limit; the bound only tells a hang from an error.
HANG_S = 10.0


def run(function, size: int, folder: Path, *args, **env: str) -> list:
    return ranks.run(function, size, folder, *args, env={"JAX_PLATFORMS": "cpu", **env})


def trains(kinds: list[str], dtype: str, steps: int) -> dict:
    import hashlib

    import jax
    import jax.numpy as jnp
    import optax
    import ringcore_jax as ring

    jax.config.update("jax_enable_x64", dtype == "float64")
    ring.init()
    me, size, batch = ring.rank(), ring.size(), 4

    def train(kind: str) -> dict:
        passes = 3 if kind == "accumulate" else 1
        plain = {"sgd": optax.sgd(0.05, momentum=0.9), "adam": optax.adam(1e-2)}.get(kind, optax.sgd(0.02))
        if kind == "clip":
            plain = optax.chain(optax.clip_by_global_norm(0.5), plain)

        def start(seed):
            first, second = jax.random.split(jax.random.key(seed))
            return {
                "hidden": {"w": jax.random.normal(first, (6, 16), dtype) / 3, "b": jnp.zeros(16, dtype)},
                "out": jax.random.normal(second, (16, 3), dtype) / 4,
            }

        def loss(params, inputs):
            hidden = jnp.tanh(inputs @ params["hidden"]["w"] + params["hidden"]["b"])
            return jnp.mean((hidden @ params["out"] - jnp.sin(inputs[:, :3])) ** 2)

        options = {"gradient_predivide_factor": 2.0} if kind == "predivided" else {}
        optimizer = ring.DistributedOptimizer(plain, backward_passes_per_step=passes, **options)
        params = ring.broadcast_parameters(start(me), root_rank=size - 1)
        reference = start(size - 1)
        state, reference_state = optimizer.init(params), plain.init(reference)

        @jax.jit
        def step(params, state, inputs):
            updates, state = optimizer.update(jax.grad(loss)(params, inputs), state, params)
            return optax.apply_updates(params, updates), state

        @jax.jit
        def reference_step(params, state, inputs):
            updates, state = plain.update(jax.grad(sum_of_losses)(params, inputs), state, params)
            return optax.apply_updates(params, updates), state

        def sum_of_losses(params, inputs):
            return sum(loss(params, part) for part in jnp.split(inputs, passes))

        for number in range(steps):
            # One step of the reference takes the batches of all ranks and passes.
            inputs = jax.random.normal(jax.random.key(number), (passes, size, batch, 6), dtype)
            for part in range(passes):
                params, state = step(params, state, inputs[part, me])
            reference, reference_state = reference_step(reference, reference_state, inputs.reshape(-1, 6))
        differences = jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), params, reference))
        digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))).hexdigest()
        moved = max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), params, start(size - 1))))
        return {"difference": max(differences), "equal": len(set(ring.allgather_object(digest))) == 1, "moved": moved}

    return {kind: train(kind) for kind in kinds}


KINDS = ["sgd", "adam", "accumulate", "clip", "predivided"]


# One start of the ranks serves all kinds.
@pytest.fixture(
    scope="module",
    params=[(2, "shm"), pytest.param((3, "tcp"), marks=pytest.mark.long)],
    ids=lambda job: "-".join(map(str, job)),
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    size, transport = request.param
    return run(trains, size, tmp_path_factory.mktemp("trained"), KINDS, "float64", 12, RINGCORE_TRANSPORT=transport)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_train_like_one_with_all_their_batches(trained: list[dict], kind: str) -> None:
    for found in (of_rank[kind] for of_rank in trained):
        # Twelve steps of sums in another order: Adam divides by gradients' sizes, of which some are a thousandth.
        assert found["difference"] < (1e-11 if kind == "adam" else 1e-13)
        assert found["equal"], "the ranks' weights differ"
        assert found["moved"] > 1e-3


@pytest.mark.long
def test_five_hundred_steps_in_float32(tmp_path: Path) -> None:
    for found in run(trains, 2, tmp_path, ["sgd", "adam"], "float32", 500):
        for kind in ("sgd", "adam"):
            # Each step rounds weights of about one by 6e-8, in one direction at worst.
            assert found[kind]["difference"] < 500 * 6e-8, kind
            assert found[kind]["equal"], f"the ranks' weights differ: {kind}"


def model(width: int):
    """Parameters, the optimizer's state, and a step."""
    params = ring.broadcast_parameters({"w": jnp.full((width, 3), 1.0 + ring.rank())})
    optimizer = ring.DistributedOptimizer(optax.sgd(0.1), compression=ring.Compression.bf16)

    @jax.jit
    def step(params, state, x):
        value, gradients = ring.value_and_grad(lambda p: (x @ p["w"]).sum())(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    return params, optimizer.init(params), step


@on(TWO)
def test_models_one_after_the_other() -> None:
    for width in (4, 9):
        params, state, step = model(width)
        for _ in range(3):
            params, state, _ = step(params, state, jnp.ones((2, width)) * (1 + ring.rank()))
        # Two rows times 1.5 on average.
        np.testing.assert_allclose(params["w"], 1.0 - 3 * 0.1 * 3.0, rtol=1e-6)


@on(TWO)
def test_two_models_in_one_program() -> None:
    @jax.jit
    def both(a, b):
        return [ring.allreduce_gradients(tree, op=ring.Sum) for tree in (a, b)]

    first, second = both({"w": jnp.ones(3)}, {"w": jnp.full((2, 2), 2.0)})
    np.testing.assert_array_equal(first["w"], np.full(3, 2.0))
    np.testing.assert_array_equal(second["w"], np.full((2, 2), 4.0))


@on(TWO)
def test_an_engine_that_is_started_anew_between_steps() -> None:
    params, state, step = model(4)
    ring.shutdown()
    error = caught(lambda: jax.block_until_ready(step(params, state, jnp.ones((2, 4)))))
    ring.init()
    assert error["type"] in ("NotInitializedError", "JaxRuntimeError")
    assert "init()" in error["message"]
    params, _, _ = step(params, state, jnp.ones((2, 4)))
    np.testing.assert_allclose(params["w"], 1.0 - 0.1 * 2.0, rtol=1e-6)


@on(TWO)
def test_any_tree_is_broadcast() -> None:
    me = ring.rank()
    params = {"w": jnp.ones((2, 3), jnp.bfloat16) * me, "count": me, "phase": jnp.ones(2, jnp.complex64) * me}
    optimizer = optax.adam(1e-3)
    tree = {
        "params": params,
        "state": optimizer.init(params["w"]),
        "key": jax.random.key(me),
        "activation": jax.nn.relu,
    }
    got = ring.broadcast_parameters(tree, root_rank=1)
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    assert got["params"]["w"].dtype == jnp.bfloat16
    assert float(got["params"]["w"].sum()) == 6.0
    assert int(got["params"]["count"]) == 1
    assert complex(got["params"]["phase"][0]) == 1
    np.testing.assert_array_equal(jax.random.key_data(got["key"]), jax.random.key_data(jax.random.key(1)))
    assert got["activation"] is jax.nn.relu


@on(TWO)
def test_trees_of_other_shapes_are_refused_by_name() -> None:
    different = caught(ring.broadcast_parameters, {"layer": {"w": jnp.ones(3 + ring.rank())}})
    assert different["type"] == "MismatchError"
    assert "['layer']['w']" in different["message"]


def mistakes() -> dict:
    import jax
    import jax.numpy as jnp
    import optax
    import ringcore_jax as ring

    ring.init()
    me = ring.rank()

    def compiled(call, *args):
        return caught(lambda: jax.block_until_ready(jax.jit(call)(*args)))

    x = jnp.ones(4)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "i")
    over = jax.sharding.PartitionSpec("i")
    found = {
        "shapes": compiled(lambda v: ring.allreduce(v, name="layer.0"), jnp.ones(3 + me)),
        "rows": compiled(lambda v: ring.allgather(v, name="rows"), jnp.ones(3 + me)),
        "complex": compiled(lambda v: ring.allreduce(v, name="phase"), x.astype(jnp.complex64)),
        "integers": compiled(ring.allreduce, jnp.ones(3, jnp.int32)),
        "uneven": compiled(ring.alltoall, jnp.ones(3)),
        "splits": compiled(lambda v: ring.alltoall(v, [2, 2]), x),
        "splits of one": compiled(lambda v: ring.scatter(v, 0, [2, 2]), x),
        "uneven shares": compiled(ring.scatter, jnp.ones(3)),
        "for one": caught(jax.grad(lambda v: ring.reduce(v, 0, name="total").sum()), x),
        "async": compiled(lambda v: ring.synchronize(ring.allreduce_async(v)), x),
        "minimum": caught(jax.grad(lambda v: ring.allreduce(v, op=ring.Min).sum()), x),
        "devices": compiled(
            jax.shard_map(ring.allreduce, mesh=mesh, in_specs=over, out_specs=over, check_vma=False), x
        ),
        "spread": caught(ring.allreduce, jax.device_put(x, jax.sharding.NamedSharding(mesh, over))),
        "platform": caught(lambda: jax.jit(ring.allreduce).trace(x).lower(lowering_platforms=("rocm",))),
        "root": compiled(lambda v: ring.broadcast(v, 7), x),
        "op": caught(ring.DistributedOptimizer, optax.sgd(1.0), op=ring.Max),
    }
    for_gpus = jax.jit(ring.allreduce).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert "custom_call @ringcore" in for_gpus
    found["after"] = float(jax.jit(lambda v: ring.allreduce(v, op=ring.Sum))(x).sum())
    return found


def test_mistakes_are_explained_and_the_next_call_works(tmp_path: Path) -> None:
    parts = {
        "shapes": "'layer.0' was submitted differently: rank 0: allreduce average of float32 [3]; rank 1: ",
        "rows": "inside jit all ranks pass as many rows",
        "complex": "allreduce 'phase': the array has dtype complex64; convert it to one of uint8",
        "integers": "the average of int32 is not defined",
        "uneven": "3 rows cannot be divided evenly among 2 ranks",
        "splits": "call it outside jit",
        "splits of one": "scatter: splits decide shapes",
        "uneven shares": "scatter: 3 rows cannot be divided evenly among 2 ranks",
        "for one": "reduce 'total': one rank alone has its result",
        "async": "inside jit and grad call the plain one",
        "minimum": "op=MIN has no gradient",
        "devices": "one process a device",
        "spread": "one CPU device a process",
        "platform": "called in a program for rocm, and this version of ringcore works on CPUs and NVIDIA's GPUs",
        "root": "root_rank 7 is not among ranks 0 to 1",
        "op": "op=Average or op=Sum, not MAX",
    }
    for found in run(mistakes, 2, tmp_path, XLA_FLAGS="--xla_force_host_platform_device_count=2"):
        assert found.pop("after") == 8.0
        for what, error in found.items():
            assert parts[what] in error["message"], (what, error)
            compiled = what in ("shapes", "rows")
            assert error["type"] == ("JaxRuntimeError" if compiled else "InvalidArgument"), (what, error)
        assert "Remedy: the shape differs" in found["shapes"]["message"]


def loses_a_peer() -> dict:
    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring

    ring.init()
    total = jax.jit(lambda x: ring.allreduce(x, op=ring.Sum, name="big.tensor"))
    x = jnp.ones(1 << 20)
    total(x).block_until_ready()
    mark("ready")

    def forever():
        while True:
            total(x).block_until_ready()

    error = caught(forever)
    error["again"] = caught(ring.allreduce, x, name="after")
    ring.shutdown()
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    ring.init()
    error["alone"] = float(total(x)[0])
    return error


def test_a_killed_rank_is_named_and_the_survivor_goes_on(tmp_path: Path) -> None:
    with ranks.started(loses_a_peer, 2, tmp_path, env={"JAX_PLATFORMS": "cpu"}) as job:
        job.await_mark("ready", 0, 1)
        begin = time.monotonic()
        job.signal(1, signal.SIGKILL)
        survivor = job.wait()[0]
        assert time.monotonic() - begin < HANG_S
    assert survivor.exit_code == 0, survivor.stderr
    error = survivor.result
    assert error["type"] in ("JaxRuntimeError", "ValueError")  # XLA's, by where it was noticed
    assert "UNAVAILABLE" in error["message"]
    assert "big.tensor" in error["message"]
    assert "rank 1" in error["message"]
    assert "Remedy" in error["message"]
    assert error["again"]["type"] == "PeerLostError"
    assert error["alone"] == 1.0


def loops_of_different_length() -> dict:
    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring

    ring.init()
    step = jax.jit(lambda x: ring.allreduce(jnp.cumsum(x) * 0 + 1, op=ring.Sum, name="step"))
    results = [step(jnp.ones(200_000)) for _ in range(2 + 3 * ring.rank())]  # nobody waits for them
    last = ring.join()
    return {"last": last, "sums": [float(result[0]) for result in results]}


def test_ranks_with_different_numbers_of_batches_join(tmp_path: Path) -> None:
    short, long = run(loops_of_different_length, 2, tmp_path)
    assert short == {"last": 1, "sums": [2.0, 2.0]}
    assert long == {"last": 1, "sums": [2.0, 2.0, 1.0, 1.0, 1.0]}


def ends_before_its_programs() -> float | None:
    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring

    ring.init()
    step = jax.jit(lambda x: ring.allreduce(jnp.cumsum(x) / x.size))

    def begin():
        x = jnp.ones(200_000)
        for _ in range(5):
            x = step(x)
        return x

    if ring.rank() == 1:
        begin()
        return None
    while not Path("result.1").exists():  # then rank 1 has nothing more to do but to end
        time.sleep(0.01)
    return float(begin()[-1])


def test_a_rank_stays_until_the_programs_that_it_began_are_done(tmp_path: Path) -> None:
    last, _ = run(ends_before_its_programs, 2, tmp_path)
    assert last is not None
    assert 0.0 < last <= 1.0


def test_without_init_the_remedy_is_init() -> None:
    ring = pytest.importorskip("ringcore_jax")
    with pytest.raises(ringcore.NotInitializedError, match=r"init\(\)"):
        ring.allreduce(np.ones(3, np.float32))


@on(TWO)
def test_errors_are_kept_by_what_was_made_for_an_optimizer() -> None:
    exchange = ring.Compression.error_feedback("int4")
    params = {"weight": jnp.zeros((100, 200))}
    draw = np.random.default_rng(ring.rank())
    gradients = {"weight": jnp.asarray(draw.standard_normal((100, 200)), jnp.float32)}
    found = {}
    for case, options in {
        "made": {"compression": exchange},
        "named": {"compression": "int4", "error_feedback": True},
        "lost": {"compression": "int4"},
    }.items():
        optimizer = ring.DistributedOptimizer(optax.sgd(1.0), name=case, **options)
        state = optimizer.init(params)
        found[case] = sum(optimizer.update(gradients, state)[0]["weight"] for _ in range(3))
    np.testing.assert_array_equal(found["made"], found["named"])
    assert set(exchange.state_dict()["errors"]) == {"weight"}
    error = exchange.errors["weight"]
    whole = -3 * ring.allreduce(gradients["weight"] - error / 3)
    np.testing.assert_allclose(found["made"], whole, atol=1e-5)
    assert ring.allgather_object(error.tobytes())[0] != error.tobytes() or ring.rank() == 0


@on(TWO)
def test_exchanges_refuse_what_they_cannot_do() -> None:
    exchange = ring.Compression.powersgd(1)
    gradient = jnp.ones((64, 64))
    with pytest.raises(ringcore.InvalidArgument, match="allreduce_gradients is called anew in each step"):
        ring.allreduce_gradients([gradient], compression="powersgd")
    with pytest.raises(ringcore.InvalidArgument, match="leave out op"):
        ring.DistributedOptimizer(optax.sgd(1.0), compression="powersgd", op=ring.Sum)
    with pytest.raises(ringcore.InvalidArgument, match="pass a compression, or leave it out"):
        ring.DistributedOptimizer(optax.sgd(1.0), error_feedback=True)
    with pytest.raises(ringcore.InvalidArgument, match="float16, and PowerSGD takes float32 and float64"):
        ring.allreduce_gradients([gradient.astype(jnp.float16)], compression=exchange)
    with pytest.raises(ringcore.InvalidArgument, match=r"PowerSGD averages the gradients of a step.*outside of grad"):
        jax.vmap(lambda x: ring.allreduce_gradients([x], compression=exchange)[0])(gradient[None])
    with pytest.raises(ringcore.InvalidArgument, match=r"does not take PowerSGD.*take one of none, fp16"):
        ring.allreduce(gradient, compression=exchange)


@on(TWO)
def test_an_exchange_averages_the_value_and_sums_of_passes() -> None:
    gradient = ring.value_and_grad(lambda w: w.sum() * (1.0 + ring.rank()), compression="onebit")
    value, average = gradient(jnp.ones((40, 50)))
    assert float(value) == 3000.0
    np.testing.assert_array_equal(average, np.full((40, 50), 1.5))
    optimizer = ring.DistributedOptimizer(optax.sgd(1.0), compression="onebit", backward_passes_per_step=2, name="two")
    params = jnp.zeros((40, 50))
    state = optimizer.init(params)
    for expected in (0.0, -3.0):
        updates, state = optimizer.update(jnp.full((40, 50), 1.0 + ring.rank()), state, params)
        np.testing.assert_array_equal(updates, np.full((40, 50), expected))


class Interrupted(ringcore.adapter.Exchange):
    def average_of_step(self, *_: object, **__: object) -> None:
        raise KeyboardInterrupt("while it waits")


@on(TWO)
def test_an_interrupt_within_a_program_is_an_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Interrupted()
    step = jax.jit(lambda x: ring.allreduce_gradients([x], compression=exchange, name="interrupted"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="KeyboardInterrupt: while it waits"):
        jax.block_until_ready(step(jnp.ones((4, 5))))

    def leaves(*_: object, **__: object) -> None:
        raise SystemExit("while it compares")

    monkeypatch.setattr(ringcore.adapter, "check_weights", leaves)
    optimizer = ring.DistributedOptimizer(optax.sgd(1.0), name="left")
    params = jnp.zeros(3)
    state = optimizer.init(params)
    with pytest.raises(jax.errors.JaxRuntimeError, match="SystemExit: while it compares"):
        jax.block_until_ready(jax.jit(optimizer.update)(params, state, params))


class Named:
    """A key of a dict that says of itself what others say."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __lt__(self, other: Named) -> bool:
        return self.number < other.number

    def __repr__(self) -> str:
        return "layer"


@on(TWO)
def test_an_exchange_tells_all_gradients_of_a_tree_apart() -> None:
    exchange = ring.Compression.onebit()
    own = jnp.full((40, 50), 1.0 + ring.rank())
    for step in (ring.allreduce_gradients, jax.jit(ring.allreduce_gradients, static_argnames=("compression", "name"))):
        averages = step({"a.b": own, "a": {"b": 3 * own}}, compression=exchange, name="apart")
        np.testing.assert_array_equal(averages["a.b"], np.full((40, 50), 1.5))
        np.testing.assert_array_equal(averages["a"]["b"], np.full((40, 50), 4.5))
    with pytest.raises(ringcore.InvalidArgument, match=r"OneBit knows .* several are called '\[layer\]'; give each"):
        ring.allreduce_gradients({Named(0): own, Named(1): own}, compression=exchange)


@on(TWO)
def test_passes_outside_of_a_program_compile_nothing_anew() -> None:
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    params = jnp.zeros((40, 50))
    for compression in ("none", "onebit"):
        optimizer = ring.DistributedOptimizer(
            optax.sgd(1.0), compression=compression, backward_passes_per_step=2, name=f"{compression} in passes"
        )
        state = optimizer.init(params)
        counts = []
        for _ in range(4):
            for _ in range(2):
                updates, state = optimizer.update(jnp.full((40, 50), 1.0 + ring.rank()), state, params)
            np.testing.assert_array_equal(updates, np.full((40, 50), -3.0))
            counts.append((len(compiled), len(in_python._calls)))
        assert len(set(counts[1:])) == 1, counts
    before = len(compiled)
    jax.jit(lambda x: x + 1)(params)
    assert len(compiled) > before  # they would have been counted


@on(TWO)
def test_another_trace_of_a_step_is_the_same_call_of_python() -> None:
    exchange, gradient = ring.Compression.onebit(), jnp.ones((40, 50))
    programs = {
        str(jax.make_jaxpr(lambda x: ring.allreduce_gradients([x], compression=exchange, name="traced"))(gradient))
        for _ in range(3)
    }
    assert len(programs) == 1
