"""Which ranks a group of torch.distributed has, and how they become one of the engine's process sets.

Numbers of process sets, and what the ranks of one host need to meet, are agreed through the store that
torch.distributed gives each group.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import os
import secrets
import socket
from pathlib import Path
from typing import Any

import ringcore
import torch.distributed as dist
from ringcore import InvalidArgument, adapter
from ringcore.adapter import (
    Placement,
    PlacementError,
    ProcessSet,
    Settings,
    context,
    find_placement,
    global_process_set,
)
from torch._C._distributed_c10d import PrefixStore

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Membership:
    """The ranks of one group.

    Args:
        store: Of this group alone.
        ranks: Of the job, in the order of the group.
        rank: This process's index among them.
        owns_engine: The engine was started for this group, and stops with it.
    """

    def __init__(self, store: Any, ranks: list[int], rank: int, *, owns_engine: bool) -> None:
        self._store = _of_this_generation(store, len(ranks))
        self._ranks = ranks
        self.rank = rank
        self.size = len(ranks)
        self._owns_engine = owns_engine
        self._pairs: dict[tuple[int, int], ProcessSet] = {}
        self._barriers = itertools.count()
        self._is_world = ranks == list(range(ringcore.size()))
        self.process_set = global_process_set if self._is_world else self._own_set()

    def job_rank(self, rank: int) -> int:
        """The job's rank of a rank of the group."""
        return self._ranks[rank]

    def pair(self, one: int, other: int) -> ProcessSet:
        """The process set of two ranks of the group, for messages between them."""
        key = min(one, other), max(one, other)
        if key not in self._pairs:
            name = f"pair.{key[0]}.{key[1]}"
            # Whoever comes first takes the next number, for both.
            number = (
                self._store.get(name)
                if self._store.check([name])
                else self._store.compare_set(name, "", str(_next_number()))
            )
            self._pairs[key] = adapter.add_process_set_of_members([self._ranks[rank] for rank in key], int(number))
        return self._pairs[key]

    def _own_set(self) -> ProcessSet:
        """The first rank takes the next number, for all."""
        if self.rank == 0:
            self._store.set("process_set", str(_next_number()))
        return adapter.add_process_set_of_members(self._ranks, int(self._store.get("process_set")))

    def missing(self, limit: datetime.timedelta) -> list[int]:
        """Wait until all ranks have come to a barrier; returns those that have not when `limit` has passed."""
        key = f"barrier.{next(self._barriers)}."
        self._store.set(f"{key}{self.rank}", b"")
        with contextlib.suppress(dist.DistStoreError):
            self._store.wait([f"{key}{rank}" for rank in range(self.size)], limit)
            return []
        return [rank for rank in range(self.size) if not self._store.check([f"{key}{rank}"])]

    def leave(self) -> None:
        """Give up the process sets; stop the engine if it was started for this group."""
        if self._owns_engine:
            ringcore.shutdown()
        elif ringcore.is_initialized():
            for process_set in [*self._pairs.values(), *([] if self._is_world else [self.process_set])]:
                with contextlib.suppress(ringcore.RingcoreError):  # operations are under way: it stays
                    context().runtime.remove_process_set(process_set.process_set_id or 0)
        self._pairs.clear()


def _of_this_generation(store: Any, size: int) -> Any:
    """A store may have keys of an earlier group of the same name: torchrun's outlives the groups."""
    arrival = store.add("ringcore.arrivals", 1) - 1
    return PrefixStore(f"ringcore.{arrival // size}", store)


def _next_number() -> int:
    return int(dist.distributed_c10d._get_default_store().add("ringcore.process_sets", 1))


def join_job(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> bool:
    """Start the engine, unless that was done already.

    Args:
        store: Of the group of all ranks.
        rank: This process's.
        size: Of the group.
        timeout: Of the group: operations end after it, unless `RINGCORE_TIMEOUT_S` says something else.

    Returns:
        Whether it was started here.

    Raises:
        InvalidArgument: The engine runs, and knows this process under another rank.
        BootstrapError: The ranks cannot reach each other.
    """
    if ringcore.is_initialized():
        if (ringcore.rank(), ringcore.size()) != (rank, size):
            raise InvalidArgument(
                f"ringcore was initialized as rank {ringcore.rank()} of {ringcore.size()}, but torch.distributed calls "
                f"this process rank {rank} of {size}; start both from the same launcher"
            )
        return False
    settings = Settings.from_environ(os.environ)
    if "RINGCORE_TIMEOUT_S" not in os.environ and timeout != dist.default_pg_timeout:
        settings = dataclasses.replace(settings, timeout_s=timeout.total_seconds())
    ringcore.init(settings=settings, placement=_placement(store, rank, size))
    return True


def _placement(store: Any, rank: int, size: int) -> Placement:
    """From the launcher, if it says the same; else from the store, for ranks of one host."""
    with contextlib.suppress(PlacementError):
        found = find_placement(os.environ)
        if (found.rank, found.size) == (rank, size):
            return found
    store = _of_this_generation(PrefixStore("placement", store), size)
    if rank == 0:
        store.set("job", secrets.token_hex(16))
    store.set(f"host.{rank}", f"{_BOOT_ID.read_text().strip()} {socket.gethostname()}")
    hosts = [store.get(f"host.{other}") for other in range(size)]
    host = hosts[rank]
    return Placement(
        rank=rank, size=size, local_rank=hosts[:rank].count(host), local_size=hosts.count(host),
        cross_rank=None, cross_size=None, source="torch.distributed", job_id=store.get("job").decode(),
    )  # fmt: skip
