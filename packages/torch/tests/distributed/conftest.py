"""Fixtures of the tests of torch.distributed with the backend "ring"."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import DEVICE, IN_A_RANK


@pytest.fixture(scope="session", autouse=True)
def job() -> Iterator[None]:
    """In a rank: the default group, and where tensors are made that do not say it."""
    if not IN_A_RANK:
        yield
        return
    options: dict[str, Any] = {}
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.set_default_device(DEVICE)
        options["device_id"] = torch.device("cuda", torch.cuda.current_device())  # as Lightning calls it
    dist.init_process_group("ring", **options)
    dist.barrier()  # a test may end the group at once, and rank 0 has the store that the others join by
    yield
    dist.destroy_process_group()


@pytest.fixture
def new_default_group(shared_folder: Path) -> Iterator[Callable[[str], None]]:
    """Makes the default group anew with a backend; after the test it is one of "ring" again."""
    made = 0
    if IN_A_RANK:
        rank, size = dist.get_rank(), dist.get_world_size()

    def make(backend: str = "ring") -> None:
        nonlocal made
        if dist.is_initialized():
            dist.destroy_process_group()
        store = dist.FileStore(str(shared_folder / f"store{made}"), size)
        made += 1
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)

    yield make
    if IN_A_RANK:
        make()


@pytest.fixture
def equal_on_all_ranks() -> Callable[[Iterable[torch.Tensor]], bool]:
    """Tells whether all ranks have the same bits."""

    def are_equal(tensors: Iterable[torch.Tensor]) -> bool:
        mine = torch.cat([tensor.detach().flatten() for tensor in tensors])
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        return all(torch.equal(parts[0], part) for part in parts)

    return are_equal
