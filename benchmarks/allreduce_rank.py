"""One rank of the allreduce benchmark; `run.py` starts it under each library's own launcher.

    python allreduce_rank.py LIBRARY MAX_BYTES

In-place float32 sum, blocking calls, one thread a rank, each rank on a core of its own while there are enough. Rank 0
prints one JSON line a size: the median time of a call over the samples, in microseconds. Then 1000 tensors of 4 KiB in
every way that the library has for them, one JSON line each. Results are verified.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = [8, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
SAMPLES = 15
# A sample repeats the call for about so long, so that short calls are timed together.
SAMPLE_S = 0.02
MOST_CALLS = 2000
MANY = 1000
MANY_BYTES = 4 << 10


class Library:
    """What a library needs to take part."""

    rank: int
    size: int
    allreduce: Callable[[Any], None]

    def empty(self, count: int) -> np.ndarray:
        """Memory for `count` floats, as a user of the library would have it."""
        return np.empty(count, np.float32)

    def many(self, arrays: list[np.ndarray]) -> dict[str, Callable[[], None]]:
        """Ways to sum all of the arrays in place."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave properly, where a library aborts otherwise."""

    def native(self, array: np.ndarray) -> Any:
        """What `allreduce` takes."""
        return array


class Ringcore(Library):
    """Private memory: an ordinary numpy array."""

    def __init__(self) -> None:
        import ringcore

        ringcore.init()
        self.rank, self.size = ringcore.rank(), ringcore.size()
        self.allreduce = lambda array: ringcore.allreduce_(array, op=ringcore.Sum, name="benchmark")

    def many(self, arrays: list[np.ndarray]) -> dict[str, Callable[[], None]]:
        import ringcore_torch as ring
        import torch

        tensors = [torch.from_numpy(array) for array in arrays]
        names = [f"tensor{i}" for i in range(len(tensors))]

        def one_by_one() -> None:
            handles = [
                ring.allreduce_async_(tensor, op=ring.Sum, name=name)
                for tensor, name in zip(tensors, names, strict=True)
            ]
            for handle in handles:
                ring.synchronize(handle)

        return {
            "asynchronous": one_by_one,
            "grouped": lambda: ring.grouped_allreduce_(tensors, op=ring.Sum, name="group"),
        }


class RingcoreRegistered(Ringcore):
    """Registered memory: what DistributedOptimizer keeps gradients in."""

    def empty(self, count: int) -> np.ndarray:
        from ringcore import adapter

        return np.frombuffer(adapter.allocate(4 * count).view(), np.float32)[:count]


class Mpi(Library):
    """Whatever MPI the environment has, through mpi4py."""

    def __init__(self) -> None:
        import mpi4py

        mpi4py.rc.thread_level = "multiple"
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        self.rank, self.size = world.Get_rank(), world.Get_size()
        self.allreduce = lambda array: world.Allreduce(MPI.IN_PLACE, array, MPI.SUM)
        self._start = lambda array: world.Iallreduce(MPI.IN_PLACE, array, MPI.SUM)
        self._wait = MPI.Request.Waitall

    def many(self, arrays: list[np.ndarray]) -> dict[str, Callable[[], None]]:
        return {"asynchronous": lambda: self._wait([self._start(array) for array in arrays])}


class Gloo(Library):
    """torch.distributed with gloo."""

    def __init__(self) -> None:
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.native = torch.from_numpy
        self.allreduce = distributed.all_reduce
        self.close = distributed.destroy_process_group

    def many(self, arrays: list[np.ndarray]) -> dict[str, Callable[[], None]]:
        import torch
        from torch import distributed

        tensors = [torch.from_numpy(array) for array in arrays]

        def one_by_one() -> None:
            for work in [distributed.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

        def flattened() -> None:
            flat = torch.cat(tensors)
            distributed.all_reduce(flat)
            torch._foreach_copy_(tensors, list(flat.split(len(tensors[0]))))

        return {"asynchronous": one_by_one, "flattened by hand": flattened}


LIBRARIES: dict[str, type[Library]] = {
    "ringcore": Ringcore,
    "ringcore-registered": RingcoreRegistered,
    "mpi": Mpi,
    "gloo": Gloo,
}


def calls_a_sample(library: Library, data: Any) -> int:
    """The same number on every rank: they add up how long a call has taken."""
    begin = time.perf_counter()
    for _ in range(5):
        library.allreduce(data)
    probe = library.empty(2)
    probe[:] = (time.perf_counter() - begin) / 5
    library.allreduce(library.native(probe))
    return max(1, min(MOST_CALLS, int(SAMPLE_S * library.size / float(probe[0]))))


def measure(library: Library, nbytes: int) -> list[float]:
    """Microseconds of a call, one value a sample."""
    array = library.empty(nbytes // 4)
    array[:] = 2.0**library.rank
    data = library.native(array)
    library.allreduce(data)
    if not (array == 2.0**library.size - 1).all():
        raise SystemExit(f"wrong sum at {nbytes} bytes on rank {library.rank}")
    array[:] = 0  # stays zero however often it is summed
    calls = calls_a_sample(library, data)
    samples = []
    for _ in range(SAMPLES if nbytes < 16 << 20 else 5):
        begin = time.perf_counter()
        for _ in range(calls):
            library.allreduce(data)
        samples.append((time.perf_counter() - begin) / calls * 1e6)
    return samples


def measure_many(library: Library) -> dict[str, float]:
    """Way -> microseconds for all of 1000 tensors."""
    arrays = [np.empty(MANY_BYTES // 4, np.float32) for _ in range(MANY)]
    meet = library.native(library.empty(2))
    found = {}
    for way, call in library.many(arrays).items():
        samples = []
        for _ in range(SAMPLES):
            for array in arrays:
                array[:] = 2.0**library.rank
            library.allreduce(meet)
            begin = time.perf_counter()
            call()
            samples.append((time.perf_counter() - begin) * 1e6)
            if not all((array == 2.0**library.size - 1).all() for array in arrays):
                raise SystemExit(f"wrong sum of many tensors, {way}, on rank {library.rank}")
        found[way] = statistics.median(samples)
    return found


def main() -> None:
    """Measure all sizes."""
    name, most = sys.argv[1], int(sys.argv[2])
    library = LIBRARIES[name]()
    cores = sorted(os.sched_getaffinity(0))
    if library.size <= len(cores):
        os.sched_setaffinity(0, {cores[library.rank % len(cores)]})
    for nbytes in SIZES:
        if nbytes > most:
            break
        samples = measure(library, nbytes)
        if library.rank == 0:
            print(json.dumps({"bytes": nbytes, "median_us": statistics.median(samples)}), flush=True)
    if name != "ringcore-registered":
        for way, microseconds in measure_many(library).items():
            if library.rank == 0:
                print(json.dumps({"way": way, "median_us": microseconds}), flush=True)
    library.close()


if __name__ == "__main__":
    main()
