"""One rank of the comparison of many ranks; `run.py` starts it under the launcher of its library.

    python rank.py LIBRARY CASE

Rank 0 prints one JSON line: for each figure of the case the median over the ranks. Every result is verified.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

CALLS = 200
WARM_CALLS = 20
IDLE_S = 8.0
LARGE = 64 << 20


class Library:
    """What the cases need of a library."""

    def __init__(self, name: str) -> None:
        self.rank, self.size, self.sum, self.finish = {"ringcore": ringcore, "gloo": gloo}.get(name, mpi)()

    def check_sum(self, array: np.ndarray) -> None:
        """An allreduce whose result is looked at."""
        array[:] = self.rank + 1
        self.sum(array)
        if not (array == self.size * (self.size + 1) / 2).all():
            raise SystemExit(f"rank {self.rank}: wrong sum of {array.nbytes} bytes")


Started = tuple[int, int, Callable[[np.ndarray], None], Callable[[], None]]


def ringcore() -> Started:
    import ringcore as ring

    ring.init()
    return ring.rank(), ring.size(), lambda array: ring.allreduce_(array, op=ring.Sum), ring.shutdown


def mpi() -> Started:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return world.rank, world.size, lambda array: world.Allreduce(MPI.IN_PLACE, array, MPI.SUM), lambda: None


def gloo() -> Started:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    reduce = lambda array: dist.all_reduce(torch.from_numpy(array))  # noqa: E731
    return dist.get_rank(), dist.get_world_size(), reduce, dist.destroy_process_group


def cpu_us() -> float:
    """Of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


def sockets() -> int:
    """Open sockets of this process."""
    folder = Path("/proc/self/fd")
    return sum(os.readlink(fd).startswith("socket:") for fd in folder.iterdir() if fd.is_symlink())


def memory_kib() -> dict[str, float]:
    """Resident, and what of it is nobody else's."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: float(line.split()[1]) for line in lines}
    return {"resident_kib": sizes["Rss"], "private_kib": sizes["Private_Clean"] + sizes["Private_Dirty"]}


def small(library: Library) -> dict[str, float]:
    """Processor time and wall time of an allreduce of 8 bytes."""
    array = np.empty(1)
    for _ in range(WARM_CALLS):
        library.check_sum(array)
    begin, cpu = time.perf_counter(), cpu_us()
    for _ in range(CALLS):
        library.check_sum(array)
    return {"cpu_us": (cpu_us() - cpu) / CALLS, "wall_us": (time.perf_counter() - begin) / CALLS * 1e6}


def start(library: Library) -> dict[str, float]:
    """Up to the first result, and what a rank has and needs then."""
    begin = float(os.environ["RINGCORE_BENCHMARK_BEGIN"])
    library.check_sum(np.empty(1))
    wall_s = time.time() - begin
    return {"wall_s": wall_s, "cpu_s": cpu_us() / 1e6, "sockets": sockets(), **memory_kib()}


def ring(library: Library) -> dict[str, float]:
    """Sockets after 64 MiB."""
    library.check_sum(np.empty(LARGE // 4, np.float32))
    return {"sockets": sockets()}


def idle(library: Library) -> dict[str, float]:
    """Share of a core while nothing is to be done."""
    library.check_sum(np.empty(1))
    time.sleep(1)
    begin, cpu = time.perf_counter(), cpu_us()
    time.sleep(IDLE_S)
    return {"core_percent": (cpu_us() - cpu) / (time.perf_counter() - begin) / 1e4}


def main() -> None:
    library = Library(sys.argv[1])
    found = {"small": small, "start": start, "ring": ring, "idle": idle}[sys.argv[2]](library)
    names = sorted(found)
    figures = np.zeros((library.size, len(names)))
    figures[library.rank] = [found[name] for name in names]
    library.sum(figures)
    if library.rank == 0:
        medians = {name: statistics.median(figures[:, i]) for i, name in enumerate(names)}
        most = {f"most_{name}": figures[:, i].max() for i, name in enumerate(names)}
        print(json.dumps({**medians, **most}), flush=True)
    library.finish()


main()
