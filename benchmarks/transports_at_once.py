"""Measures whether a host carries more over shared memory and TCP at once than over one of them: two ranks a job.

    python benchmarks/transports_at_once.py [--turns 5] [--seconds 4]

Sums 64 MiB of float32 over each alone, and over both in two jobs at the same time, in turns. Prints GiB of tensors a
second, medians, least and most. TCP sends in clear text. See docs/adr/0046-one-transport-inside-a-host.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ELEMENTS = 16 << 20
LIMIT_S = 60


def rank(folder: Path, seconds: float) -> None:
    """Sum until the time is over; all jobs begin together, when the file "go" is there."""
    import numpy as np
    import ringcore

    ringcore.init()
    values = np.ones(ELEMENTS, np.float32)
    ringcore.allreduce_(values, op=ringcore.Max, name="warm")
    (folder / f"ready.{os.environ['RINGCORE_TRANSPORT']}.{ringcore.rank()}").touch()
    deadline = time.monotonic() + LIMIT_S
    while not (folder / "go").exists():
        if time.monotonic() > deadline:
            raise SystemExit("the other job did not start")
        time.sleep(0.001)
    begin, count, over = time.monotonic(), 0, False
    while not over:
        ringcore.allreduce_(values, op=ringcore.Max, name="data")
        count += 1
        late = np.array([time.monotonic() - begin > seconds], np.int32)
        over = bool(ringcore.allreduce(late, op=ringcore.Max, name="over")[0])
    took = time.monotonic() - begin
    if not (values == 1).all():
        raise SystemExit("a wrong result")
    if ringcore.rank() == 0:
        (folder / os.environ["RINGCORE_TRANSPORT"]).write_text(str(count * values.nbytes / took / 2**30))


def rates(transports: tuple[str, ...], seconds: float) -> list[float]:
    """Of a job for each transport, at the same time."""
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory())
        folder = Path(name)
        command = [sys.executable, "-m", "ringcore", "run", "-np", "2", sys.executable, __file__, "--rank", name]
        jobs = [
            subprocess.Popen(
                [*command, "--seconds", str(seconds)],
                env={**os.environ, "RINGCORE_TRANSPORT": transport, "RINGCORE_ENCRYPTION": "off"},
            )
            for transport in transports
        ]
        for job in jobs:
            stack.callback(job.kill)
        deadline = time.monotonic() + LIMIT_S
        while len(list(folder.glob("ready.*"))) < 2 * len(jobs):
            if time.monotonic() > deadline or any(job.poll() for job in jobs):
                raise SystemExit("the ranks did not start")
            time.sleep(0.01)
        (folder / "go").touch()
        if any(job.wait(LIMIT_S) for job in jobs):
            raise SystemExit("a job failed")
        return [float((folder / transport).read_text()) for transport in transports]


def main() -> None:
    """Take turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return rank(options.rank, options.seconds)
    found: dict[str, list[float]] = {}
    for _ in range(options.turns):
        for transports in (("shm",), ("tcp",), ("shm", "tcp")):
            where = "at once" if len(transports) > 1 else "alone"
            for transport, rate in zip(transports, rates(transports, options.seconds), strict=True):
                found.setdefault(f"{transport} {where}", []).append(rate)
    for way, measured in found.items():
        print(f"{way}: {statistics.median(measured):.2f} GiB/s, {min(measured):.2f} to {max(measured):.2f}")
    return None


if __name__ == "__main__":
    main()
