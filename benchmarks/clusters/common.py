"""What ranks of a cluster do when they are measured, and how it is told."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ELEMENTS = 1 << 20  # 4 MiB
LARGE = 1 << 24  # 64 MiB

rows: list[str] = []  # that were told


def interleaved(what: str, repeats: int, calls: Mapping[str, Callable[[], Any]]) -> None:
    """Call each so often, one after the other, and tell what it took: what a call returns, if that is a number."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            measured = call()
            seconds[name].append(measured if isinstance(measured, float) else time.perf_counter() - begin)
    for name, taken in seconds.items():
        tell(what, name, taken)


def tell(what: str, who: str, seconds: list[float]) -> None:
    """Print a row, and keep it."""
    first, *later = seconds
    row = {"first_s": first, "median_s": statistics.median(later), "least_s": min(later), "most_s": max(later)}
    rows.append(json.dumps({"what": what, "who": who, **{key: round(value, 4) for key, value in row.items()}}))
    print(rows[-1], flush=True)


def check(found: Any) -> None:
    """All ranks have the sum of two ones."""
    values = found if isinstance(found, list) else [found]
    assert all(value == 2.0 for value in values), found


def by_ringcore() -> float:
    import ringcore as ring

    ring.init()
    return float(ring.allreduce(np.ones(ELEMENTS, np.float32), op=ring.Sum)[0])


def by_torch(group: bool = True) -> float:
    import torch

    if group:
        torch.distributed.init_process_group("gloo")
    values = torch.ones(ELEMENTS)
    torch.distributed.all_reduce(values)
    if group:
        torch.distributed.destroy_process_group()
    return float(values[0])


def from_ticket_to_init() -> tuple[float, float]:
    """When this rank's agent was started, which has the ticket, and when init() was done; on the clock since boot."""
    import ringcore as ring

    ring.init()
    done = time.clock_gettime(time.CLOCK_BOOTTIME)
    ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK"), done


def large_by_ringcore(repeats: int) -> list[float]:
    """Seconds of 64 MiB, rank by rank the same work."""
    import ringcore as ring

    ring.init()
    values = np.zeros(LARGE, np.float32)
    return _timed(repeats, lambda: ring.allreduce_(values, op=ring.Sum), ring.barrier)


def large_by_gloo(repeats: int) -> list[float]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    values = torch.zeros(LARGE)
    taken = _timed(repeats, lambda: dist.all_reduce(values), dist.barrier)
    dist.destroy_process_group()
    return taken


def _timed(repeats: int, work: Callable[[], Any], barrier: Callable[[], Any]) -> list[float]:
    taken = []
    for _ in range(repeats + 1):
        barrier()
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return taken


def waits(folder: str) -> None:
    """Rank 1 waits in an allreduce for rank 0, which is to be killed."""
    import ringcore as ring

    ring.init()
    if ring.rank() == 0:
        pid = Path(folder, "pid.part")
        pid.write_text(f"{os.getpid()} {os.getppid()}")
        pid.rename(Path(folder, "pid"))
        time.sleep(1000)
    ring.allreduce(np.ones(10))
