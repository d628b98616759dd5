"""An optimizer of which each rank has a share updates parameters as the whole one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import ringcore
import ringcore_jax as ring
from support.on_ranks import THREE_OVER_TCP, TWO, on

ROUNDING = 1e-12

WAYS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: optax.adamw(optax.exponential_decay(0.01, 2, 0.5), weight_decay=0.1),
    "amsgrad": lambda: optax.amsgrad(0.01),
    "adagrad": lambda: optax.adagrad(0.1),
    "adadelta": lambda: optax.adadelta(0.5),
    "rmsprop": lambda: optax.rmsprop(0.01, centered=True, momentum=0.5),
    "lion": lambda: optax.lion(1e-3),
    "clipped values": lambda: optax.chain(optax.clip(0.01), optax.adamax(0.01)),
}


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    """Sums of another order differ by rounding alone."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def start() -> dict[str, Any]:
    """Parameters of two dtypes, no share of which ends where a parameter does."""
    draw = np.random.default_rng(0)
    shapes = {"w": (7, 5), "b": (5,), "scale": ()}
    params = {key: jnp.asarray(draw.standard_normal(shape)) for key, shape in shapes.items()}
    return {"first": params, "apart": jnp.asarray(draw.standard_normal((7, 3)), jnp.float32)}


def loss(params: Any, inputs: Any) -> Any:
    hidden = jnp.tanh(inputs @ params["first"]["w"] + params["first"]["b"]) * params["first"]["scale"]
    # What is rounded to float32 reaches nothing of float64.
    apart = jnp.mean(jnp.square(jnp.float32(inputs) @ params["apart"])) if "apart" in params else 0.0
    return jnp.mean(jnp.square(hidden)) + apart


def train(
    optimizer: Any, params: Any, state: Any, steps: range, *, alone: bool = False, jits: bool = True
) -> tuple[Any, Any]:
    """Some steps; `alone`: with all ranks' batches."""

    def of_all(params: Any, inputs: Any) -> Any:
        return sum(loss(params, part) for part in inputs) / len(inputs)

    def step(params: Any, state: Any, inputs: Any) -> tuple[Any, Any]:
        of = (of_all, inputs) if alone else (loss, inputs[ring.rank()])
        updates, state = optimizer.update(jax.grad(of[0])(params, of[1]), state, params)
        return optax.apply_updates(params, updates), state

    if jits:
        step = jax.jit(step)
    for number in steps:
        inputs = jax.random.normal(jax.random.key(number), (ring.size(), 4, 7), jnp.float64)
        params, state = step(params, state, inputs)
    return params, state


def difference(left: Any, right: Any) -> float:
    """The largest; what is of float32 is rounded coarser by so much."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return max(
        float(jnp.abs(a - b).max()) * (1e-7 if a.dtype == jnp.float32 else 1.0)
        for a, b in pairs
        if a.dtype != jnp.int32
    )


def are_equal_on_all_ranks(tree: Any) -> bool:
    texts = ringcore.allgather_object([np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)])
    return all(text == texts[0] for text in texts)


@on(TWO, THREE_OVER_TCP)
# Each is compiled for seconds; in each run one stands for the others.
@pytest.mark.parametrize("way", [way if way == "adamw" else pytest.param(way, marks=pytest.mark.long) for way in WAYS])
def test_every_way_updates_as_without_shards(way: str) -> None:
    plain = WAYS[way]()
    optimizer = ring.ShardedOptimizer(plain)
    params, state = train(optimizer, start(), optimizer.init(start()), range(5))
    expected, expected_state = train(plain, start(), plain.init(start()), range(5), alone=True)
    assert difference(params, expected) < ROUNDING
    assert difference(params, start()) > 1e-3
    assert are_equal_on_all_ranks(params)
    whole = ring.gather_state(plain, state, params)
    assert jax.tree.structure(whole) == jax.tree.structure(expected_state)
    assert difference(whole, expected_state) < ROUNDING
    kept, all_of_it = (sum(leaf.size for leaf in jax.tree.leaves(one)) for one in (state, expected_state))
    assert kept <= all_of_it / ring.size() + 10


@on(TWO)
def test_gradients_are_sent_in_half_the_bytes() -> None:
    plain = optax.sgd(0.1, momentum=0.9)
    optimizer = ring.ShardedOptimizer(plain, compression="bf16")
    params, _ = train(optimizer, start(), optimizer.init(start()), range(5))
    expected, _ = train(plain, start(), plain.init(start()), range(5), alone=True)
    assert are_equal_on_all_ranks(params)
    assert 1e-6 < difference(params, expected) < 1e-2


@on(TWO)
@pytest.mark.parametrize(
    "form", ["gathered", *(pytest.param(form, marks=pytest.mark.long) for form in ("own", "without shards"))]
)
def test_training_goes_on_from_a_state(form: str) -> None:
    plain = optax.adam(0.01)
    optimizer = ring.ShardedOptimizer(plain)
    params, state = train(optimizer, start(), optimizer.init(start()), range(3))
    expected, expected_state = train(plain, start(), plain.init(start()), range(3), alone=True)
    if form == "gathered":
        state = ring.shard_state(plain, ring.gather_state(plain, state, params), params)
    elif form == "without shards":
        state = ring.shard_state(plain, expected_state, params)
    else:
        state = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), state)
    params, _ = train(optimizer, params, state, range(3, 6))
    expected, _ = train(plain, expected, expected_state, range(3, 6), alone=True)
    assert difference(params, expected) < ROUNDING


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("max_norm", [0.05, pytest.param(100.0, marks=pytest.mark.long)])
def test_clipping_by_the_norm_of_all_parameters(max_norm: float) -> None:
    plain = optax.chain(optax.clip_by_global_norm(max_norm), optax.sgd(0.1))
    optimizer = ring.ShardedOptimizer(optax.sgd(0.1), max_norm=max_norm)
    begin = {"first": start()["first"]}
    params, _ = train(optimizer, begin, optimizer.init(begin), range(3))
    expected, _ = train(plain, begin, plain.init(begin), range(3), alone=True)
    assert difference(params, expected) < ROUNDING


@on(TWO)
def test_outside_of_compiled_programs_and_every_second_pass() -> None:
    plain = optax.sgd(0.1, momentum=0.9)
    optimizer = ring.ShardedOptimizer(plain)
    params, _ = train(optimizer, start(), optimizer.init(start()), range(2), jits=False)
    expected, _ = train(plain, start(), plain.init(start()), range(2), alone=True)
    assert difference(params, expected) < ROUNDING
    several = optax.MultiSteps(ring.ShardedOptimizer(plain, name="several"), 2)
    params, _ = train(several, start(), several.init(start()), range(4))
    reference = optax.MultiSteps(plain, 2)
    expected, _ = train(reference, start(), reference.init(start()), range(4), alone=True)
    assert difference(params, expected) < 1e-7  # MultiSteps adds up in float32


@on(TWO)
def test_gradients_of_another_dtype_than_the_parameters() -> None:
    plain = optax.adam(0.01)
    optimizer = ring.ShardedOptimizer(plain)
    params = start()["first"]
    gradients = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    expected, _ = plain.update(gradients, plain.init(params), params)
    assert jax.tree.map(lambda leaf: leaf.dtype, updates) == jax.tree.map(lambda leaf: leaf.dtype, expected)
    assert difference(updates, expected) < ROUNDING


def decayed_matrices() -> optax.GradientTransformation:
    return optax.adamw(0.1, mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params), weight_decay=1.0)


def by_names() -> optax.GradientTransformation:
    return optax.partition({"a": optax.sgd(0.1), "b": optax.sgd(0.2)}, {"first": "a", "apart": "b"})


@on(TWO)
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), "pass max_norm"),
        pytest.param(lambda: optax.lamb(0.1), "a matrix and a vector", marks=pytest.mark.long),
        (lambda: optax.adafactor(0.1), "a matrix and a vector"),
        pytest.param(lambda: optax.contrib.muon(0.1), "a matrix and a vector|cannot be tried", marks=pytest.mark.long),
        (decayed_matrices, "a matrix and a vector"),
        (by_names, "cannot be tried"),
    ],
    ids=["clip_by_global_norm", "lamb", "adafactor", "muon", "mask by shape", "by names"],
)
def test_what_does_not_work_by_element_is_refused(make: Callable[[], optax.GradientTransformation], why: str) -> None:
    with pytest.raises(ringcore.InvalidArgument, match=f"(?s)does not work by element.*({why})"):
        ring.ShardedOptimizer(make())


@on(TWO)
def test_other_refusals() -> None:
    optimizer = ring.ShardedOptimizer(optax.sgd(0.1))
    with pytest.raises(ringcore.InvalidArgument, match=r"'a\.steps' has the dtype int32"):
        optimizer.init({"a": {"steps": jnp.zeros(3, jnp.int32)}})
    with pytest.raises(ringcore.InvalidArgument, match="reduce-scatters gradients, and int4 is for allreduces"):
        ring.ShardedOptimizer(optax.sgd(0.1), compression="int4")
    with pytest.raises(ringcore.InvalidArgument, match="keep each rank's own"):
        ring.gather_state(optax.adam(0.1), optimizer.init(start()), start())
    params = {"w": jnp.full(3, 1.0 + ring.rank())}
    with pytest.raises(ringcore.MismatchError, match="w"):
        optimizer.update(params, optimizer.init(params), params)
