"""Which ranks a group of torch.distributed has, and how they become one of the engine's process sets.

Numbers of process sets are agreed through the store that torch.distributed gives each group.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
from typing import Any

import ringcore
import torch.distributed as dist
from ringcore import adapter
from ringcore.adapter import ProcessSet, context, global_process_set

from ringcore_torch.distributed import job


class Membership:
    """The ranks of one group; the engine is held for it until it leaves.

    Args:
        store: Of this group alone.
        ranks: Of torch.distributed, in the order of the group.
        rank: This process's index among them.
        timeout: Of the group: see `job.join`.

    Raises:
        InvalidArgument: Not all of the ranks are in the engine's job.
        BootstrapError: The ranks cannot reach each other.
    """

    def __init__(self, store: Any, ranks: list[int], rank: int, timeout: datetime.timedelta) -> None:
        self._ranks = job.join(store, ranks, rank, timeout)
        self._store = job.of_this_generation(store, len(ranks))
        self.rank = rank
        self.size = len(ranks)
        self._has_left = False
        self._pairs: dict[tuple[int, int], ProcessSet] = {}
        self._barriers = itertools.count()
        self._is_world = self._ranks == list(range(ringcore.size()))
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
        with contextlib.suppress(RuntimeError):  # a file's store has no DistStoreError for it; a lost one fails below
            self._store.wait([f"{key}{rank}" for rank in range(self.size)], limit)
            return []
        return [rank for rank in range(self.size) if not self._store.check([f"{key}{rank}"])]

    def leave(self) -> None:
        """Give up the process sets, and the engine."""
        if self._has_left:
            return
        self._has_left = True
        if ringcore.is_initialized():
            for process_set in [*self._pairs.values(), *([] if self._is_world else [self.process_set])]:
                with contextlib.suppress(ringcore.RingcoreError):  # operations are under way: it stays
                    context().runtime.remove_process_set(process_set.process_set_id or 0)
        self._pairs.clear()
        job.leave()


def _next_number() -> int:
    return int(dist.distributed_c10d._get_default_store().add("ringcore.process_sets", 1))
