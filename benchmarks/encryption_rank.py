"""One rank of the benchmark of encryption, on a host of its own; `encryption.py` starts it.

    python encryption_rank.py ringcore RANK SIZE ROOT_ADDRESS KEY_FILE bulk|latency|start [one-core]

Rank 0 prints one JSON line a size: milliseconds of a call, and the processor seconds of all ranks together for one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ringcore
from network_rank import PORT

# Bytes -> how often it is measured, and calls of each time: of two small calls in a row one may find all of it there.
CALLS = {8: (20, 50), 4 << 10: (20, 50), 64 << 20: (4, 1)}
STARTS = 4


def of_all(values: list[float], op: Any) -> list[float]:
    """Values of each rank, combined."""
    return ringcore.allreduce(np.array(values), op=op, name="told").tolist()


def calls(nbytes: int) -> dict[str, Any]:
    """Milliseconds of a sum in place, each time that it is measured, and the processor seconds of all ranks a sum."""
    rank, size = ringcore.rank(), ringcore.size()
    times, together = CALLS[nbytes]
    array = np.full(nbytes // 4, 2.0**rank, np.float32)
    for _ in range(together):  # the first ones make connections and buffers
        ringcore.allreduce_(array, op=ringcore.Sum, name="benchmark")
    milliseconds = []
    processor = time.process_time()
    for _ in range(times):
        array.fill(0)
        begin = time.perf_counter()
        for _ in range(together):
            ringcore.allreduce_(array, op=ringcore.Sum, name="benchmark")
        milliseconds.append((time.perf_counter() - begin) * 1e3 / together)
    processor = (time.process_time() - processor) / (times * together)
    array.fill(2.0**rank)
    ringcore.allreduce_(array, op=ringcore.Sum, name="benchmark")
    if not (array == 2.0**size - 1).all():
        raise SystemExit(f"wrong sum at {nbytes} bytes on rank {rank}")
    return {"bytes": nbytes, "milliseconds": milliseconds, "processor_s": of_all([processor], ringcore.Sum)[0]}


def starts() -> dict[str, Any]:
    """Milliseconds from the last rank's coming to all ranks' having the first sum; all clocks are one machine's."""
    milliseconds = []
    for _ in range(STARTS):
        ringcore.shutdown()
        begin = time.monotonic()
        ringcore.init()
        total = ringcore.allreduce(np.ones(2, np.float32), op=ringcore.Sum, name="first")
        end = time.monotonic()
        if (total != ringcore.size()).any():
            raise SystemExit(f"wrong sum on rank {ringcore.rank()}")
        came, had = of_all([begin, end], ringcore.Max)
        milliseconds.append((had - came) * 1e3)
    return {"bytes": 8, "milliseconds": milliseconds}


def measured(case: str) -> Iterator[dict[str, Any]]:
    """The findings of a case."""
    match case:
        case "bulk":
            yield calls(64 << 20)
        case "latency":
            yield calls(8)
            yield calls(4 << 10)
        case "start":
            yield starts()


def main() -> None:
    """Measure one case."""
    rank, size, root, key_file, case = sys.argv[2:7]
    if "one-core" in sys.argv:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(rank) % len(cores)]})
    os.environ.update(RANK=rank, WORLD_SIZE=size, RINGCORE_RENDEZVOUS=f"tcp:{root}:{PORT}", RINGCORE_KEY_FILE=key_file)
    ringcore.init()
    for found in measured(case):
        transports = sorted(set(ringcore.job.state.context().runtime.transports()))
        if rank == "0":
            used = {"openssl": ringcore._native.tls_library().partition(" (")[0]} if "tls" in transports else {}
            print(json.dumps({**found, "transports": transports, **used}), flush=True)
    ringcore.shutdown()


if __name__ == "__main__":
    main()
