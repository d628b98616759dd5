"""What this rank has done so far, and what it waits for."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from ringcore.job.state import Context, context, is_initialized


def statistics() -> dict[str, Any]:
    """Tell what this rank has done since `init()`, and what it waits for: for TensorBoard, or a log.

    Asking takes some microseconds, and no other rank.

    Returns:
        `rank`, `size`, `host`, `pid`; `seconds` since the start; `steps` of PyTorch's optimizers;
        `operations` that have ended; `bytes_sent` and `bytes_received` by transport, of what plans have moved (small
        blocking operations go along with their announcement, and MPI's and NCCL's own collectives move theirs
        themselves); `memory_bytes` of this process; `waits`: of each operation that is not done its `operation`, for
        how many `seconds`, whether it is `released`, as all ranks have submitted it, and the ranks that are `missing`.

    Raises:
        NotInitializedError: Before `init()`.
    """
    return statistics_of(context())


def statistics_of(current: Context) -> dict[str, Any]:
    """See `statistics`."""
    found = current.runtime.statistics()
    return {
        "rank": current.rank,
        "size": current.size,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "seconds": time.monotonic() - current.began,
        "steps": current.steps,
        "operations": found["operations"],
        "bytes_sent": {transport: sent for transport, (sent, _) in found["traffic"].items()},
        "bytes_received": {transport: received for transport, (_, received) in found["traffic"].items()},
        "memory_bytes": _resident_bytes(),
        "waits": [
            {"operation": title, "seconds": seconds, "released": released, "missing": missing}
            for title, seconds, released, missing in found["waits"]
        ],
    }


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def drop_step() -> None:
    """For adapters: the ranks that go on without another one leave out a step, all of them the same one."""
    context().dropped_steps += 1


@contextlib.contextmanager
def optimizer_step() -> Iterator[None]:
    """For adapters: around a step of an optimizer, which is counted. A rank that was told to leave does so behind it.

    Raises:
        SystemExit: It was told to leave, and makes no commits at which it could.
    """
    if not is_initialized():
        yield
        return
    context().steps += 1
    yield
    launcher = context().launcher
    if launcher is not None:
        launcher.leave_after_step()
