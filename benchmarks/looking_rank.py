"""One rank of `looking.py`: trains in steps until the file STOP is there, and writes when each of them ended.

    python looking_rank.py FOLDER STEP_MS

A step computes for STEP_MS of processor time and sums 1 MiB of gradients: of a model of a quarter million parameters.
FOLDER/RANK.npy has a row a step: when it ended, by a clock that all processes of the host share, and how much processor
time this process has used until then, all threads of it. All ranks end at the same step.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import ringcore

GRADIENTS = 1 << 18


def compute(seconds: float) -> None:
    """Use so much processor time."""
    values = np.ones(1 << 12, np.float32)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        values *= 0.5
        values += 0.5


def main() -> None:
    folder, step_ms = Path(sys.argv[1]), float(sys.argv[2])
    ringcore.init()
    gradients = np.zeros(GRADIENTS, np.float32)
    ends = []
    while gradients[0] == 0:
        compute(step_ms / 1000)
        gradients[:] = 0
        gradients[0] = (folder / "stop").exists()  # whoever sees it first tells all
        ringcore.allreduce_(gradients, op=ringcore.Max, name="gradients")
        ends.append((time.monotonic(), time.process_time()))
        if len(ends) == 1:
            (folder / f"{ringcore.rank()}.trains").touch()
    np.save(folder / f"{ringcore.rank()}.npy", np.array(ends))
    ringcore.shutdown()


main()
