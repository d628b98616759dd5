"""Fixtures of the tests of the PyTorch adapter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import pytest
import ringcore_torch as ring
import torch
from support.on_ranks import (
    DEVICE,
    IN_A_RANK,
    pytest_pyfunc_call,
    pytest_runtest_logreport,
    shared_folder,
    start,
)

__all__ = ["pytest_pyfunc_call", "pytest_runtest_logreport", "shared_folder", "start"]


@pytest.fixture(scope="session", autouse=True)
def job() -> Iterator[None]:
    """In a rank: its job, and where tensors are made that do not say it."""
    if not IN_A_RANK:
        yield
        return
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.set_default_device(DEVICE)
    ring.init()
    yield
    ring.shutdown()


@pytest.fixture(autouse=True)
def seed() -> None:
    """Models are the same on all ranks, where a test does not say otherwise."""
    torch.manual_seed(0)


@pytest.fixture
def equal_on_all_ranks() -> Callable[[Iterable[torch.Tensor]], bool]:
    """Tells whether all ranks have the same bits."""

    def are_equal(tensors: Iterable[torch.Tensor]) -> bool:
        every = ring.allgather(torch.cat([tensor.detach().flatten() for tensor in tensors])[None], name="equal")
        return bool((every == every[0]).all())

    return are_equal


@pytest.fixture
def drawn() -> Callable[..., torch.Tensor]:
    """Makes random numbers of float64, the same on every device."""

    def draw(*shape: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE)

    return draw
