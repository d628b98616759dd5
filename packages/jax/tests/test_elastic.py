"""Elastic training of JAX: a rank is killed, the other goes on with its parameters, and another joins."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.elastic_adapters import check_recovery

HEAD = """
import jax
import jax.numpy as jnp
import optax
import ringcore_jax as ring
from ringcore_jax import elastic
"""
SETUP = """
optimizer = ring.DistributedOptimizer(optax.adam(0.01))
params = {"w": jax.random.normal(jax.random.key(os.getpid()), (3,))}
state = elastic.JaxState(params=params, optimizer=optimizer.init(params), step=0)

@jax.jit
def update(params, slots):
    gradients = jax.grad(lambda p: jnp.sum((p["w"] - 1) ** 2))(params)
    changes, slots = optimizer.update(gradients, slots, params)
    return optax.apply_updates(params, changes), slots

def step(state):
    state.params, state.optimizer = update(state.params, state.optimizer)

def weights(state):
    return state.params["w"].tolist()
"""


# A rank that is alone compiles its program anew, and calls that when another one has come.
ANEW = SETUP.replace(
    "def step(state):", "def step(state):\n    if ring.size() == 1 and state.step == 6:\n        update.clear_cache()"
)


@pytest.mark.parametrize(
    "setup", [SETUP, pytest.param(ANEW, marks=pytest.mark.long)], ids=["compiled by two", "compiled alone"]
)
def test_one_rank_goes_on_without_the_other_and_takes_another_in(setup: str, tmp_path: Path) -> None:
    check_recovery(tmp_path, HEAD, setup, JAX_PLATFORMS="cpu")
