"""Measures what a training job loses while somebody looks at it: a step's time with `ringcore top` and without.

    python benchmarks/looking.py [--ranks 16] [--seconds 150] [--step-ms 2] [--intervals 2 0.2]

One job of ringrun, in which windows with and without a `ringcore top` take turns: it runs all the time, on a terminal
of its own, and is stopped (SIGSTOP) in the windows without. Which of a pair comes first is drawn by lot. For each
interval between two looks: the median over all pairs of the ratio of a step's mean time, with an interval of 95 %
(bootstrap over pairs), the same of the processor time that the ranks use for a step, and what follows from both for one
look. The first interval is that of a user; at a shorter one what a look costs stands out of the noise. Writes
benchmarks/results/looking.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import pty
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from windows import Window, median_with_bounds, step_times

HERE = Path(__file__).parent
RINGCORE = [sys.executable, "-m", "ringcore"]
# Looks in a window, the first of them at its begin: the pause before it was as long as the interval.
LOOKS = 1
SHORTEST_WINDOW_S = 0.5
START_LIMIT_S = 60.0


@contextlib.contextmanager
def job(folder: Path, ranks: int, step_ms: float) -> Iterator[dict[str, str]]:
    """The job trains inside; gives the variables for who looks at it."""
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [*RINGCORE, "run", "-np", str(ranks), sys.executable, str(HERE / "looking_rank.py")]
    running = subprocess.Popen([*command, str(folder), str(step_ms)], env=environ)
    try:
        limit = time.monotonic() + START_LIMIT_S
        while not all((folder / f"{rank}.trains").exists() for rank in range(ranks)):
            if running.poll() is not None or time.monotonic() > limit:
                raise SystemExit("the job does not train")
            time.sleep(0.1)
        yield environ
        (folder / "stop").touch()
        if running.wait(START_LIMIT_S) != 0:
            raise SystemExit("the job has failed")
    finally:
        running.terminate()
        running.wait()


@contextlib.contextmanager
def looker(environ: dict[str, str], interval_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """A `ringcore top` that is stopped, on a terminal that somebody reads."""
    ours, its = pty.openpty()
    top = subprocess.Popen([*RINGCORE, "top", "--interval", str(interval_s)], stdout=its, stderr=its, env=environ)
    os.close(its)

    def read() -> None:
        with contextlib.suppress(OSError):  # nobody writes any more
            while os.read(ours, 1 << 16):
                pass

    os.read(ours, 1)  # it draws
    reader = threading.Thread(target=read)
    reader.start()
    top.send_signal(signal.SIGSTOP)
    try:
        yield top
        if top.poll() is not None:
            raise SystemExit("ringcore top has ended")
    finally:
        top.kill()
        top.wait()
        reader.join()
        os.close(ours)


def look_by_turns(environ: dict[str, str], interval_s: float, seconds: float) -> Iterator[Window]:
    """Windows in pairs: one with looks and one without."""
    length = max(LOOKS * interval_s, SHORTEST_WINDOW_S)
    with looker(environ, interval_s) as top:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for looks in random.sample([True, False], 2):
                begin = time.monotonic()
                top.send_signal(signal.SIGCONT if looks else signal.SIGSTOP)
                time.sleep(length)
                yield Window(looks, begin, time.monotonic())


def compare(interval_s: float, windows: Sequence[Window], ranks: Sequence[np.ndarray]) -> dict[str, object]:
    """What the pairs of one interval tell."""
    with_looks = np.array([step_times(window, ranks) for window in windows if window.disturbed])
    without = np.array([step_times(window, ranks) for window in windows if not window.disturbed])
    ratios = with_looks / without
    found: dict[str, object] = {
        "interval_s": interval_s, "pairs": len(ratios), "step_ms": float(np.median(without[:, 0])),
    }  # fmt: skip
    # A second of the job is a second, or as many seconds of processors as the ranks use in it.
    for i, name in enumerate(("wall", "processor")):
        median, low, high = median_with_bounds(ratios[:, i])
        second = float(np.median(without[:, i] / without[:, 0]))
        found[name] = {
            "ratio": median, "bounds": [low, high],
            "ms_a_look": [(ratio - 1) * second * interval_s * 1e3 for ratio in (median, low, high)],
        }  # fmt: skip
    return found


def show(found: dict[str, object]) -> None:
    """A line for each of the two times."""
    print(f"a look each {found['interval_s']} s; {found['pairs']} pairs of windows, steps of {found['step_ms']:.1f} ms")
    for name in ("wall", "processor"):
        times = found[name]
        assert isinstance(times, dict)
        low, high = times["bounds"]
        cost = ", ".join(f"{value:.2f}" for value in times["ms_a_look"])
        print(f"  {name}: {times['ratio']:.4f} ({low:.4f} to {high:.4f}); a look costs the job {cost} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=150.0, help="for all intervals together")
    parser.add_argument("--step-ms", type=float, default=2.0, help="processor time of a rank in a step")
    parser.add_argument("--intervals", type=float, nargs="+", default=[2.0, 0.2], help="seconds between two looks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        windows = []
        with job(folder, options.ranks, options.step_ms) as environ:
            for interval_s in options.intervals:
                seconds = options.seconds / len(options.intervals)
                windows.append(list(look_by_turns(environ, interval_s, seconds)))
        ranks = [np.load(folder / f"{rank}.npy") for rank in range(options.ranks)]
    found = [compare(*each, ranks) for each in zip(options.intervals, windows, strict=True)]
    for each in found:
        show(each)
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "ranks": options.ranks}
    (HERE / "results" / "looking.json").write_text(json.dumps({**machine, "figures": found}, indent=1) + "\n")


main()
