"""Measures how soon the other ranks know that a rank was killed, raised or left, in the middle of 256 MiB allreduces.

    python benchmarks/detection.py [--repeats 20]

Milliseconds from the event to the error on the last survivor, and for ringrun from the event to the end of the job.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

import numpy as np  # noqa: E402
import ringcore  # noqa: E402
from support import ranks  # noqa: E402
from support.processes import RINGRUN, clean_environ, is_alive  # noqa: E402
from support.rank import mark  # noqa: E402

ELEMENTS = 64 << 20


def reduces_until_an_error(elements: int, leaves: bool) -> float:
    """One rank; the last one may leave after a while. Returns when it heard that a rank is lost, or left."""
    ringcore.init()
    tensor = np.ones(elements, np.float32)
    last = ringcore.rank() == ringcore.size() - 1
    ringcore.allreduce_(tensor, op=ringcore.Max, name="t")
    mark("ready")
    try:
        for step in range(1_000_000):
            if last and leaves and step == 3:
                begin = time.monotonic()
                ringcore.shutdown()
                return begin
            ringcore.allreduce_(tensor, op=ringcore.Max, name="t")
    except ringcore.RingcoreError:
        return time.monotonic()
    raise AssertionError("nobody told")


def killed(size: int) -> float:
    """Milliseconds from SIGKILL to the last survivor's error."""
    with (
        tempfile.TemporaryDirectory() as directory,
        ranks.started(reduces_until_an_error, size, Path(directory), ELEMENTS, False) as job,
    ):
        job.await_mark("ready", *range(size))
        begin = time.monotonic()
        job.signal(size - 1, signal.SIGKILL)
        heard = [outcome.result for outcome in job.wait()[:-1]]
    return (max(heard) - begin) * 1000


def left(size: int) -> float:
    """Milliseconds from a rank's early exit to the last survivor's error."""
    with (
        tempfile.TemporaryDirectory() as directory,
        ranks.started(reduces_until_an_error, size, Path(directory), ELEMENTS, True) as job,
    ):
        times = [outcome.result for outcome in job.wait()]
    return (max(times[:-1]) - times[-1]) * 1000


RAISING = """
import sys, time, numpy, ringcore
ringcore.init()
tensor = numpy.ones(1 << 20, numpy.float32)
for step in range(1_000_000):
    if step == 100 and ringcore.rank() == ringcore.size() - 1:
        open(sys.argv[1], "w").write(str(time.monotonic()))
        raise LookupError("on purpose")
    ringcore.allreduce_(tensor, op=ringcore.Max, name="t")
"""


def job_ends(size: int) -> float:
    """Milliseconds from an exception on one rank to the end of the whole job under ringrun."""
    with tempfile.NamedTemporaryFile() as file:
        command = [*RINGRUN, "-np", str(size), sys.executable, "-c", RAISING, file.name]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False, env=clean_environ())
        ended = time.monotonic()
        if done.returncode != 1:
            raise SystemExit(done.stderr.decode())
        return (ended - float(Path(file.name).read_text())) * 1000


WAITING = """
import os, sys, time, numpy, ringcore
ringcore.init()
ringcore.barrier()
open(f"{sys.argv[1]}/{ringcore.rank()}.new", "w").write(str(os.getpid()))
os.rename(f"{sys.argv[1]}/{ringcore.rank()}.new", f"{sys.argv[1]}/{ringcore.rank()}")
time.sleep(600)
"""


def launcher_killed(size: int) -> float:
    """Milliseconds from SIGKILL of ringrun to the death of the last rank."""
    with tempfile.TemporaryDirectory() as directory:
        job = subprocess.Popen(
            [*RINGRUN, "-np", str(size), sys.executable, "-c", WAITING, directory], env=clean_environ()
        )
        names = [str(rank) for rank in range(size)]
        while not all(name in os.listdir(directory) for name in names):
            if job.poll() is not None:
                raise SystemExit("the job ended early")
            time.sleep(0.01)
        pids = [int(Path(directory, name).read_text()) for name in names]
        begin = time.monotonic()
        job.kill()
        job.wait()
        while any(is_alive(pid) for pid in pids):
            time.sleep(0.0005)
        return (time.monotonic() - begin) * 1000


def main() -> None:
    """All causes, at 2 and 4 ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    causes = {
        "a rank is killed": killed,
        "a rank leaves early": left,
        "a rank raises: end of the job": job_ends,
        "ringrun is killed: end of the ranks": launcher_killed,
    }
    with (HERE / "results" / "detection.jsonl").open("w") as file:
        for size in (2, 4):
            for cause, measure in causes.items():
                times = [measure(size) for _ in range(repeats)]
                file.write(json.dumps({"cause": cause, "ranks": size, "milliseconds": times}) + "\n")
                print(
                    f"{size} ranks, {cause}: median {statistics.median(times):.1f} ms, "
                    f"{min(times):.1f} to {max(times):.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
