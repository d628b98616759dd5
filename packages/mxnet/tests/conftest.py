"""Fixtures of the tests of the MXNet adapter."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from support.on_ranks import IN_A_RANK, pytest_pyfunc_call, pytest_runtest_logreport, shared_folder, start

with warnings.catch_warnings():  # MXNet is older than what it imports
    warnings.simplefilter("ignore")
    import ringcore_mxnet as ring  # first: it helps the import of MXNet

    import mxnet as mx  # isort: skip

__all__ = ["pytest_pyfunc_call", "pytest_runtest_logreport", "shared_folder", "start"]


@pytest.fixture(scope="session", autouse=True)
def job() -> Iterator[None]:
    """In a rank: its job."""
    if IN_A_RANK:
        ring.init()
    yield
    if IN_A_RANK:
        mx.nd.waitall()
        ring.shutdown()


@pytest.fixture(autouse=True)
def together(request: pytest.FixtureRequest) -> Iterator[None]:
    """In a rank: nobody begins the next test while others are still at this one."""
    yield
    if IN_A_RANK and not request.session.testsfailed:
        ring.barrier()
