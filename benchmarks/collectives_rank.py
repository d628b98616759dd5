"""One rank of the comparison of all collectives with an MPI's own; `run.py collectives` starts it under its launcher.

    RINGCORE_TRANSPORT=auto mpiexec -n 2 python collectives_rank.py MAX_BYTES

float32, and allreduce also of other dtypes; blocking calls, one thread a rank, each rank on a core of its own while
there are enough. Each collective of ringcore, in a new array, in a given one, and in a given one of registered memory,
and of MPI through mpi4py, in a given one, take turns sample by sample. A size is that of the array that a rank puts in.
Rank 0 prints one JSON line a collective and size: the median time of a call, in microseconds. Results are verified.
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
from mpi4py import MPI

SIZES = [64, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
# Many short ones: on a machine that is not ours alone, a long one is hardly ever left in peace.
SAMPLES = 61
SAMPLE_S = 0.003
MOST_CALLS = 1000
WARMUPS = 5
CASES = [
    *((collective, "float32") for collective in ("broadcast", "allgather", "alltoall", "reducescatter", "allreduce")),
    *(("allreduce", dtype) for dtype in ("float16", "float64", "int32")),
]

WORLD = MPI.COMM_WORLD
RANK, RANKS = WORLD.rank, WORLD.size
Call = Callable[[], Any]


def filled(array: np.ndarray) -> np.ndarray:
    """With this rank's mark in each element."""
    array[:] = 2.0**RANK
    return array


def calls_of(collective: str, count: int, dtype: str) -> dict[str, tuple[Call, np.ndarray | None]]:
    """Way -> (a call, the array that it leaves its result in; none: it returns it)."""
    results = {"allgather": count * RANKS, "reducescatter": count // RANKS}.get(collective, count)
    ordinary, registered = filled(np.empty(count, dtype)), filled(ringcore.empty(count, dtype))
    ways: dict[str, tuple[Call, np.ndarray | None]] = {}
    places = {
        "given": (ordinary, np.empty(results, dtype)),
        "registered": (registered, ringcore.empty(results, dtype)),
    }
    verb = getattr(ringcore, collective)
    more = {"allreduce": {"op": ringcore.Sum}, "reducescatter": {"op": ringcore.Sum}}.get(collective, {})
    root = (0,) if collective == "broadcast" else ()
    ways["ringcore, new"] = (lambda: verb(ordinary, *root, name=collective, **more), None)
    for place, (source, out) in places.items():
        # In the closure's defaults: the loop goes on.
        def call(source: np.ndarray = source, out: np.ndarray = out) -> Any:
            return verb(source, *root, name=collective, out=out, **more)

        ways[f"ringcore, {place}"] = (call, out)
    out = np.empty(results, dtype)
    if dtype == "float16":  # of which mpi4py knows no name, and not every MPI has one
        if MPI.REAL2 != MPI.DATATYPE_NULL:
            ways["MPI"] = (lambda: WORLD.Allreduce([ordinary, MPI.REAL2], [out, MPI.REAL2], MPI.SUM), out)
        return ways
    of_mpi: dict[str, Call] = {
        "allreduce": lambda: WORLD.Allreduce(ordinary, out, MPI.SUM),
        "allgather": lambda: WORLD.Allgather(ordinary, out),
        "alltoall": lambda: WORLD.Alltoall(ordinary, out),
        "reducescatter": lambda: WORLD.Reduce_scatter_block(ordinary, out, MPI.SUM),
    }
    if collective == "broadcast":  # which has no array to put in but at the root
        ways["MPI"] = (lambda: WORLD.Bcast(out), out)
        out[:] = 1.0 if RANK == 0 else 0.0
    else:
        ways["MPI"] = (of_mpi[collective], out)
    return ways


def is_right(collective: str, result: np.ndarray) -> bool:
    """Whether each element is what the ranks' marks make of it."""
    if collective in ("allreduce", "reducescatter"):
        return bool((result == 2.0**RANKS - 1).all())
    if collective == "broadcast":
        return bool((result == 1.0).all())
    return all((part == 2.0**rank).all() for rank, part in enumerate(np.split(result, RANKS)))


def time_of(call: Call, calls: int) -> float:
    """Microseconds of a call; the ranks begin together, and have left the MPI's barrier behind them."""
    WORLD.Barrier()
    call()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls * 1e6


def measure(collective: str, dtype: str, nbytes: int) -> dict[str, float]:
    """Way -> median microseconds of a call."""
    ways = calls_of(collective, nbytes // np.dtype(dtype).itemsize, dtype)
    calls = {}
    for way, (call, out) in ways.items():
        for _ in range(WARMUPS):
            result = call()
            if not is_right(collective, result if out is None else out):
                raise SystemExit(f"{way}: wrong {collective} of {nbytes} bytes on rank {RANK}")
        slowest = WORLD.allreduce(time_of(call, 3), MPI.MAX)
        calls[way] = max(1, min(MOST_CALLS, int(SAMPLE_S * 1e6 / slowest)))
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(SAMPLES if nbytes < 16 << 20 else 7):
        for way, (call, _) in ways.items():
            samples[way].append(time_of(call, calls[way]))
    return {way: statistics.median(values) for way, values in samples.items()}


def main() -> None:
    """Measure all collectives and sizes."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= RANKS:
        os.sched_setaffinity(0, {cores[RANK % len(cores)]})
    ringcore.init()
    for collective, dtype in CASES:
        for nbytes in SIZES:
            if nbytes > int(sys.argv[1]):
                break
            found = measure(collective, dtype, nbytes)
            name = collective if dtype == "float32" else f"{collective} of {dtype}"
            if RANK == 0:
                print(json.dumps({"collective": name, "bytes": nbytes, "median_us": found}), flush=True)
    ringcore.shutdown()


if __name__ == "__main__":
    main()
