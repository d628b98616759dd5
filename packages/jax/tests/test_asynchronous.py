"""Sums of those gradients that are there first: what `tests/conformance` does not do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import ringcore
import ringcore_jax as ring
from support.on_ranks import TWO, on


def start() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {"w": jnp.asarray(draw.standard_normal((5, 3)), jnp.float32), "b": jnp.zeros(3, jnp.bfloat16)}


@jax.jit
def gradients_of(params: Any, number: int) -> Any:
    x = jax.random.normal(jax.random.key(number), (4, 5))
    return jax.grad(lambda held: jnp.mean((x @ held["w"] + held["b"].astype(jnp.float32)) ** 2))(params)


def learn(optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.step(gradients_of(optimizer.params, 10 * step + ring.rank()))


def adam() -> optax.GradientTransformation:
    return optax.adam(optax.exponential_decay(0.05, 2, 0.5))


@on(TWO)
def test_with_all_ranks_and_no_staleness_it_is_synchronous_training() -> None:
    optimizer = ring.AsyncOptimizer(adam(), start(), staleness=0)
    learn(optimizer, range(6))
    params, together = start(), ring.DistributedOptimizer(adam())
    state = together.init(params)
    for step in range(6):
        updates, state = together.update(gradients_of(params, 10 * step + ring.rank()), state, params)
        params = optax.apply_updates(params, updates)
    ended = optimizer.synchronize()
    assert float(jnp.abs(ended["w"] - params["w"]).max()) < 1e-5
    assert ended["b"].dtype == jnp.bfloat16
    assert float(jnp.abs(ended["b"] - params["b"]).max()) < 0.01


@on(TWO)
def test_what_is_kept_goes_on_as_if_nothing_had_been() -> None:
    ends = []
    for goes_on in (False, True):
        optimizer = ring.AsyncOptimizer(adam(), start(), staleness=0)
        learn(optimizer, range(3))
        if goes_on:
            optimizer.synchronize()
            kept = jax.tree.map(np.asarray, optimizer.state_dict())
            optimizer = ring.AsyncOptimizer(adam(), start(), staleness=0)
            optimizer.load_state_dict(kept)
        learn(optimizer, range(3, 6))
        ends.append(jax.tree.map(lambda leaf: np.asarray(leaf).tobytes(), optimizer.synchronize()))
    assert ends[0] == ends[1]


@on(TWO)
def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ringcore.InvalidArgument, match=r"'a\.steps' has the dtype int32"):
        ring.AsyncOptimizer(adam(), {"a": {"steps": jnp.zeros(3, jnp.int32)}}, staleness=0)
    with pytest.raises(ringcore.InvalidArgument, match="from 1 to 2, not 3"):
        ring.AsyncOptimizer(adam(), start(), staleness=0, threshold=3)
    with pytest.raises(ringcore.InvalidArgument, match="AsyncOptimizer does not take TopK"):
        ring.AsyncOptimizer(adam(), start(), staleness=0, compression=ring.Compression.topk())
    optimizer = ring.AsyncOptimizer(adam(), start(), staleness=0)
    with pytest.raises(ringcore.InvalidArgument, match="was called inside jit"):
        jax.jit(optimizer.step)(start())
    optimizer = ring.AsyncOptimizer(adam(), {"w": jnp.full(3, 1.0 + ring.rank())}, staleness=0)
    with pytest.raises(ringcore.MismatchError, match=r"w.*broadcast_parameters"):
        optimizer.step({"w": jnp.ones(3)})
