"""Parameters, a loss and a batch."""

import jax
import jax.numpy as jnp
import optax

params = {"w": jnp.ones(4), "b": jnp.zeros(())}
batch = (jnp.ones((8, 4)), jnp.ones(8))


def loss(params, batch):
    x, y = batch
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def leave():
    if "step" in globals():
        assert loss(step(params, state, batch)[0], batch) < loss(params, batch)  # noqa: F821
    assert jax and optax
