"""One rank of the comparison with the MPI that ringcore runs over; `run.py mpi` starts it under that MPI's launcher.

    RINGCORE_TRANSPORT=mpi|auto mpiexec -n 2 python mpi_rank.py MAX_BYTES

In-place float32 sum, blocking calls, one thread a rank, each rank on a core of its own while there are enough. ringcore
and MPI_Allreduce, through mpi4py, take turns sample by sample. Rank 0 prints one JSON line a size: the median time of a
call, in microseconds, of both. Results are verified.
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
import ringcore
from allreduce_rank import SIZES
from mpi4py import MPI

SAMPLES = 15
SAMPLE_S = 0.02
MOST_CALLS = 2000
# ringcore tries its plans and MPI's nonblocking collectives first; with large data it tries less.
TRIALS = 40
LARGE_TRIALS = 10

WORLD = MPI.COMM_WORLD


def time_of(call: Callable[[Any], Any], array: np.ndarray, calls: int) -> float:
    """Microseconds of a call; the ranks begin together."""
    WORLD.Barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call(array)
    return (time.perf_counter() - begin) / calls * 1e6


def measure(ways: dict[str, Callable[[Any], Any]], nbytes: int) -> dict[str, float]:
    """Way -> median microseconds of a call."""
    array = np.empty(nbytes // 4, np.float32)
    calls = {}
    for way, call in ways.items():
        for _ in range(TRIALS if nbytes < 4 << 20 else LARGE_TRIALS):
            array[:] = 2.0**WORLD.rank
            call(array)
            if not (array == 2.0**WORLD.size - 1).all():
                raise SystemExit(f"{way}: wrong sum at {nbytes} bytes on rank {WORLD.rank}")
        array[:] = 0  # stays zero however often it is summed
        slowest = WORLD.allreduce(time_of(call, array, 3), MPI.MAX)
        calls[way] = max(1, min(MOST_CALLS, int(SAMPLE_S * 1e6 / slowest)))
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(SAMPLES if nbytes < 16 << 20 else 5):
        for way, call in ways.items():
            samples[way].append(time_of(call, array, calls[way]))
    return {way: statistics.median(values) for way, values in samples.items()}


def main() -> None:
    """Measure all sizes."""
    cores = sorted(os.sched_getaffinity(0))
    if WORLD.size <= len(cores):
        os.sched_setaffinity(0, {cores[WORLD.rank % len(cores)]})
    # Else as scripts do that know nothing of MPI: shared memory and our own TCP.
    ringcore.init(WORLD if os.environ["RINGCORE_TRANSPORT"] == "mpi" else None)
    ways = {
        "ringcore": lambda array: ringcore.allreduce_(array, op=ringcore.Sum, name="benchmark"),
        "MPI_Allreduce": lambda array: WORLD.Allreduce(MPI.IN_PLACE, array, MPI.SUM),
    }
    for nbytes in SIZES:
        if nbytes > int(sys.argv[1]):
            break
        found = measure(ways, nbytes)
        if WORLD.rank == 0:
            print(json.dumps({"bytes": nbytes, "median_us": found}), flush=True)
    ringcore.shutdown()


if __name__ == "__main__":
    main()
