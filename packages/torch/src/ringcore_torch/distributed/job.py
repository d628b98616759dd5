"""The engine's job, as groups of torch.distributed see it.

The first group with this backend starts the engine, of all ranks or, beside a group of another backend, of some; the
last one stops it. A job that ringcore.init() has started is only used. What the ranks of one host need to meet goes
through the store that torch.distributed gives each group.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import secrets
import socket
from pathlib import Path
from typing import Any

import ringcore
import torch.distributed as dist
from ringcore import InvalidArgument
from ringcore.adapter import Placement, Settings, find_placement
from torch._C._distributed_c10d import PrefixStore

_SOURCE = "torch.distributed"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclasses.dataclass
class _Job:
    """A job that was started here.

    Attributes:
        ranks: Those of torch.distributed, in the order of the engine's.
        groups: How many groups use it.
    """

    ranks: list[int]
    groups: int = 0


_job: _Job | None = None


def join(store: Any, ranks: list[int], rank: int, timeout: datetime.timedelta) -> list[int]:
    """Start the engine for a group, unless it runs.

    Args:
        store: Of the group.
        ranks: Of torch.distributed, in the order of the group.
        rank: This process's index among them.
        timeout: Of the group: operations end after it, unless `RINGCORE_TIMEOUT_S` says something else.

    Returns:
        The engine's numbers of these ranks.

    Raises:
        InvalidArgument: The engine runs, and knows this process under another rank or does not know all of these.
        BootstrapError: The ranks cannot reach each other.
    """
    global _job
    if not ringcore.is_initialized():
        settings = Settings.from_environ(os.environ)
        if "RINGCORE_TIMEOUT_S" not in os.environ and timeout != dist.default_pg_timeout:
            settings = dataclasses.replace(settings, timeout_s=timeout.total_seconds())
        placement = _placement(store, ranks, rank)
        if placement.source == _SOURCE and placement.local_size == placement.size:
            # They meet by the name that the store has; what the launcher says of a meeting is for all its ranks.
            settings = dataclasses.replace(settings, rendezvous=None, job_id=placement.job_id)
        ringcore.init(settings=settings, placement=placement)
        _job = _Job(ranks)
    if _job is None:
        _check_same_ranks(ranks, rank)
        return ranks
    if missing := [str(other) for other in ranks if other not in _job.ranks]:
        raise InvalidArgument(
            f"new_group({ranks}): the first group with the backend 'ring' was of ranks {_job.ranks}, and made them a "
            f"job without rank {', '.join(missing)}. Remedy: make a group of all ranks first, "
            "dist.new_group(backend='ring'), or call ringcore.init() after init_process_group"
        )
    _job.groups += 1
    return [_job.ranks.index(other) for other in ranks]


def leave() -> None:
    """A group is given up: the engine stops with the last one, if it was started for the first."""
    global _job
    if _job is None:
        return
    _job.groups -= 1
    if _job.groups == 0:
        _job = None
        ringcore.shutdown()


def of_this_generation(store: Any, size: int) -> Any:
    """A store may have keys of an earlier group of the same name: torchrun's outlives the groups."""
    arrival = store.add("ringcore.arrivals", 1) - 1
    return PrefixStore(f"ringcore.{arrival // size}", store)


def _check_same_ranks(ranks: list[int], rank: int) -> None:
    if ringcore.rank() != ranks[rank] or max(ranks) >= ringcore.size():
        raise InvalidArgument(
            f"ringcore was initialized as rank {ringcore.rank()} of {ringcore.size()}, but torch.distributed calls "
            f"this process rank {ranks[rank]}, in a group of {ranks}; start both from the same launcher"
        )


def _placement(store: Any, ranks: list[int], rank: int) -> Placement:
    """From the launcher, if its job is this group; else from the store, for ranks of one host."""
    size = len(ranks)
    with contextlib.suppress(InvalidArgument):
        found = find_placement(os.environ)
        if ranks == list(range(found.size)) and found.rank == rank:
            return found
    store = of_this_generation(PrefixStore("placement", store), size)
    if rank == 0:
        store.set("job", secrets.token_hex(16))
    store.set(f"host.{rank}", f"{_BOOT_ID.read_text().strip()} {socket.gethostname()}")
    hosts = [store.get(f"host.{other}") for other in range(size)]
    host = hosts[rank]
    return Placement(
        rank=rank, size=size, local_rank=hosts[:rank].count(host), local_size=hosts.count(host),
        cross_rank=None, cross_size=None, source=_SOURCE, job_id=store.get("job").decode(),
    )  # fmt: skip
