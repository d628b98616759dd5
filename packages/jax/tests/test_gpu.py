"""Collectives of compiled programs on a GPU, which ranks share where there are fewer: `nox -s gpu_jax` runs this."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import ringcore_jax as ring
from support.on_ranks import ONE_ON_A_GPU, TWO_ON_GPUS, on


@on(ONE_ON_A_GPU, TWO_ON_GPUS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
def test_sums(dtype: str) -> None:
    own = jnp.arange(100, dtype=dtype)

    @jax.jit
    def total(values: jax.Array) -> jax.Array:
        result: jax.Array = ring.allreduce(values * (ring.rank() + 1), op=ring.Sum)
        return result

    found = total(own)
    assert {device.platform for device in found.devices()} == {"gpu"}
    assert found.dtype == dtype
    assert jnp.array_equal(found, own * sum(range(1, ring.size() + 1)))


@on(ONE_ON_A_GPU, TWO_ON_GPUS)
def test_a_gradient_is_summed_backwards_and_is_scaled_by_each_rank_itself() -> None:
    def loss(values: jax.Array) -> jax.Array:
        return ring.allreduce(values * (ring.rank() + 1), op=ring.Sum).sum()

    found = jax.jit(jax.grad(loss))(jnp.ones(50))
    assert jnp.array_equal(found, jnp.full(50, ring.size() * (ring.rank() + 1.0)))


@on(ONE_ON_A_GPU, TWO_ON_GPUS)
def test_broadcast_and_allgather() -> None:
    @jax.jit
    def both(values: jax.Array) -> tuple[jax.Array, jax.Array]:
        return ring.broadcast(values, root_rank=0), ring.allgather(values)

    rank, size = ring.rank(), ring.size()
    first, every = both(jnp.full((2, 3), float(rank)))
    assert jnp.array_equal(first, jnp.zeros((2, 3)))
    assert jnp.array_equal(every, jnp.repeat(jnp.arange(float(size)), 2)[:, None] * jnp.ones(3))
