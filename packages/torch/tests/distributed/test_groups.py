"""The life of groups: destroyed and made again, in one store, beside groups of another backend."""

from __future__ import annotations

import datetime
import gc
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import ringcore
import torch
import torch.distributed as dist
from ringcore_torch.distributed import job
from support.on_ranks import THREE, TWO, Start, on

UNDER_TORCHRUN = Start(3, launcher="torchrun", variables=(("RINGCORE_TIMEOUT_S", "20"),))


def total(group: Any = None) -> float:
    tensor = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor, group=group)
    return float(tensor[0])


def shared_segments() -> int:
    gc.collect()  # results may lie in the engine's memory
    return Path("/proc/self/maps").read_text().count("memfd:ringcore")


@on(TWO)
def test_groups_are_destroyed_and_made_again(new_default_group: Callable[[], None]) -> None:
    left = []
    for _ in range(3):
        assert total() == 3.0
        used = shared_segments()
        if dist.get_rank() == 0:  # from then on, the ranks of this group count differently
            with pytest.raises(RuntimeError):
                dist.all_reduce(torch.ones(1, device="meta"))
        dist.destroy_process_group()
        assert not ringcore.is_initialized()
        left.append(shared_segments())
        assert left[-1] < used
        new_default_group()
    assert left == left[:1] * 3


@on(TWO)
def test_groups_are_made_again_on_an_engine_that_runs(new_default_group: Callable[[], None]) -> None:
    dist.destroy_process_group()
    ringcore.init()
    for _ in range(2):
        new_default_group()
        assert total() == 3.0
        if dist.get_rank() == 0:
            with pytest.raises(RuntimeError):
                dist.all_reduce(torch.ones(1, device="meta"))
        dist.destroy_process_group()
        assert ringcore.is_initialized()
    ringcore.shutdown()


@on(TWO)
def test_futures_end_when_their_group_is_destroyed(new_default_group: Callable[[], None]) -> None:
    """Futures of a message that never comes."""
    watched, unwatched = (dist.irecv(torch.empty(1), 1 - dist.get_rank(), tag=tag) for tag in range(2))
    future = watched.get_future()
    dist.barrier()
    dist.destroy_process_group()
    for wait in (future.wait, lambda: unwatched.get_future().wait()):
        with pytest.raises(RuntimeError, match=r"ShutdownError|PeerLostError"):
            wait()


@pytest.mark.long
@on(THREE)
def test_groups_beside_a_default_group_of_gloo(
    new_default_group: Callable[[str], None], equal_on_all_ranks: Callable[[Iterable[torch.Tensor]], bool]
) -> None:
    """Where nobody has called ringcore.init()."""
    rank, size = dist.get_rank(), dist.get_world_size()
    new_default_group("gloo")
    assert not ringcore.is_initialized()
    world = dist.new_group(backend="ring")
    last = dist.new_group([size - 2, size - 1], backend="ring")
    assert total(world) == total() == size * (size + 1) / 2
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 3), process_group=world)
    model(torch.full((4, 8), rank + 1.0)).square().mean().backward()
    assert equal_on_all_ranks(parameter.grad for parameter in model.parameters())
    dist.destroy_process_group(world)
    if rank >= size - 2:
        assert total(last) == 2 * size - 1, "the engine stays for this group"
        dist.destroy_process_group(last)
    assert not ringcore.is_initialized(), "the engine stops with the last group"
    some = dist.new_group([size - 2, size - 1], backend="ring")
    if rank >= size - 2:
        assert (ringcore.rank(), ringcore.size()) == (rank - size + 2, 2)
        assert total(some) == 2 * size - 1
        with pytest.raises(ringcore.InvalidArgument, match=r"a job without rank 0\. Remedy: make a group of all ranks"):
            dist.new_group([0, rank], backend="ring", use_local_synchronization=True)
    dist.destroy_process_group()
    assert not ringcore.is_initialized()


def report_lookups(patch: pytest.MonkeyPatch, mark: Path) -> list[bool]:
    """Leave a mark before this rank waits for a value in a group's store.

    Returns:
        Whether each of the values was there already.
    """
    there = []

    class Store(dist.PrefixStore):
        def get(self, key: str) -> bytes:
            there.append(self.check([key]))
            mark.touch()
            value: bytes = super().get(key)
            return value

    patch.setattr(job, "PrefixStore", Store)
    return there


def wait_for(mark: Path) -> None:
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline, f"{mark} has not come"
        time.sleep(0.01)


@on(UNDER_TORCHRUN)
def test_groups_are_made_again_in_torchruns_store(monkeypatch: pytest.MonkeyPatch, shared_folder: Path) -> None:
    """Groups of the same names in the same store, which has what the earlier ones left."""
    rank = dist.get_rank()
    for attempt in range(3):
        # As the first of this group: the names of groups are counted.
        dist.destroy_process_group()
        dist.init_process_group("ring")
        mark = shared_folder / f"looked{attempt}"
        there = report_lookups(monkeypatch, mark) if rank == 1 else []
        if rank == 0:
            wait_for(mark)  # rank 1 looks for what rank 0 will say, and must not find what it has said before
        group = dist.new_group([0, 1])
        if rank < 2:
            assert total(group) == 3.0
            assert there == [False] * rank
        monkeypatch.undo()
        dist.distributed_c10d._get_default_group().monitored_barrier(datetime.timedelta(seconds=60))
