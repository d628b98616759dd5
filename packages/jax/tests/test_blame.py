"""Which rank ringrun blames when one ends and the others fail for it, in the framework's own words."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.blame import WAYS, check_blame

FRAMEWORK = """
    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring

    compiled = jax.jit(ring.allreduce)

    def step():
        compiled(jnp.ones(8)).block_until_ready()
"""


@pytest.mark.long  # in each run PyTorch's adapter, of whatever the launcher sees
@pytest.mark.parametrize("way", WAYS)
def test_the_rank_that_ended_is_blamed_and_its_exit_code_told(tmp_path: Path, way: str) -> None:
    check_blame(tmp_path, FRAMEWORK, way)
