"""Fixtures of the tests of the JAX adapter."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.on_ranks import (
    DEVICE,
    IN_A_RANK,
    pytest_pyfunc_call,
    pytest_runtest_logreport,
    shared_folder,
    start,
)

os.environ["JAX_PLATFORMS"] = DEVICE
if DEVICE == "cuda":
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # ranks may share it

__all__ = ["pytest_pyfunc_call", "pytest_runtest_logreport", "shared_folder", "start"]


@pytest.fixture(scope="session", autouse=True)
def job() -> Iterator[None]:
    """In a rank: its job."""
    if not IN_A_RANK:
        yield
        return
    import ringcore_jax as ring

    ring.init()
    yield
    ring.shutdown()
