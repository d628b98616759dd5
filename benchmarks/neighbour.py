"""A neighbour who takes a share of each processor: what a machine is like that is not ours alone.

    python neighbour.py PROCESSOR SHARE

One process of this a processor; `neighbours` starts and ends them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# About as long as Linux lets somebody have a processor.
PERIOD_S = 0.004


@contextlib.contextmanager
def neighbours(share: float) -> Iterator[None]:
    """Inside, so much of each processor that this process may use is taken; none with a share of 0."""
    processors = sorted(os.sched_getaffinity(0)) if share > 0 else []
    running = [
        subprocess.Popen([sys.executable, str(Path(__file__)), str(processor), str(share)]) for processor in processors
    ]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def main() -> None:
    """Compute and sleep by turns, until the parent ends."""
    processor, share = int(sys.argv[1]), float(sys.argv[2])
    os.sched_setaffinity(0, {processor})
    parent = os.getppid()
    while os.getppid() == parent:
        end = time.thread_time() + share * PERIOD_S
        while time.thread_time() < end:
            pass
        time.sleep((1 - share) * PERIOD_S)


if __name__ == "__main__":
    main()
