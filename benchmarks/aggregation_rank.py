"""One rank of the benchmark of in-network aggregation, on a host of its own; `aggregation.py` starts it.

    python aggregation_rank.py ringcore RANK SIZE ROOT_ADDRESS KEY_FILE bulk|small

Rank 0 prints one JSON line: the times in milliseconds, and who has carried the last calls out, as the timeline tells.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import ringcore
from network_rank import PORT

BULK_ELEMENTS, SMALL_ELEMENTS, SMALL_TENSORS = 4 << 20, 1 << 10, 1000
# Until all candidates were tried, by each of the two lanes that take turns; and measured ones.
CALLS = {"bulk": (20, 5), "small": (24, 9)}
NOT_CARRIERS = {"negotiate", "queue", "copy", "pack", "unpack", "wait"}


def bulk() -> None:
    """One sum of 16 MiB."""
    array = np.full(BULK_ELEMENTS, ringcore.rank() + 1, np.float32)
    ringcore.allreduce_(array, op=ringcore.Sum, name="bulk")
    check(array[0], array[-1])


def small() -> None:
    """A thousand sums of 4 KiB, all under way at once."""
    arrays = [np.full(SMALL_ELEMENTS, ringcore.rank() + 1, np.float32) for _ in range(SMALL_TENSORS)]
    handles = [ringcore.allreduce_async_(array, op=ringcore.Sum, name=f"small {i}") for i, array in enumerate(arrays)]
    for handle in handles:
        ringcore.synchronize(handle)
    check(arrays[0][0], arrays[-1][-1])


def check(*values: np.float32) -> None:
    """They are the sum over the ranks."""
    if any(value != ringcore.size() * (ringcore.size() + 1) // 2 for value in values):
        raise SystemExit(f"wrong sum on rank {ringcore.rank()}: {values}")


def main() -> None:
    """Measure."""
    rank, size, root, key_file, case = sys.argv[2:7]
    os.environ.update(RANK=rank, WORLD_SIZE=size, RINGCORE_RENDEZVOUS=f"tcp:{root}:{PORT}", RINGCORE_KEY_FILE=key_file)
    ringcore.init()
    call: Callable[[], None] = {"bulk": bulk, "small": small}[case]
    before, measured = CALLS[case]
    for _ in range(before):
        call()
    milliseconds = []
    for _ in range(measured):
        ringcore.barrier()
        begin = time.perf_counter()
        call()
        milliseconds.append((time.perf_counter() - begin) * 1e3)
    slowest = ringcore.allreduce(np.array(milliseconds), op=ringcore.Max, name="told").tolist()
    runtime = ringcore.job.state.context().runtime
    runtime.start_timeline()
    call()
    spans = runtime.stop_timeline()
    taken = sorted({span[1] for span in spans if span[3] < 0} - NOT_CARRIERS)
    if rank == "0":
        print(json.dumps({"milliseconds": slowest, "taken": taken}), flush=True)
    ringcore.shutdown()


if __name__ == "__main__":
    main()
