"""Fixtures of the tests of the Keras adapter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.on_keras import keras, ring
from support.on_ranks import IN_A_RANK, pytest_pyfunc_call, pytest_runtest_logreport, shared_folder, start

__all__ = ["pytest_pyfunc_call", "pytest_runtest_logreport", "shared_folder", "start"]


@pytest.fixture(scope="session", autouse=True)
def job() -> Iterator[None]:
    """In a rank: its job."""
    if IN_A_RANK:
        ring.init()
    yield
    if IN_A_RANK:
        ring.shutdown()


@pytest.fixture(autouse=True)
def clear() -> None:
    """Names begin anew, on all ranks."""
    if IN_A_RANK:
        keras.utils.clear_session()
