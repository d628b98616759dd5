"""The command `ringcore demo`: two ranks sum an array, and what they did is drawn as lines of text."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

_LIMIT_S = 60.0
_COLUMNS = 60
_STEPS = 6

# Each rank: computes for a while, rank 1 for longer, and sums with the other one; as training does.
_PROGRAM = """
import sys, time
import numpy as np
import ringcore as ring

ring.init()
me, size = ring.rank(), ring.size()
small = ring.allreduce(np.array([1.0, 2.0, 3.0]) * (me + 1), op=ring.Sum)
if me == 0:
    print(f"rank 0 had {np.array([1.0, 2.0, 3.0])}, rank 1 had {np.array([2.0, 4.0, 6.0])}: the sum on both is {small}")
gradients = np.ones(2_000_000, np.float32)
ring.barrier()
begin = time.perf_counter()
for step in range(int(sys.argv[1])):
    until = time.perf_counter() + 0.004 * (me + 1)
    while time.perf_counter() < until:
        pass
    ring.allreduce_(gradients, name=f"gradients of step {step}")
seconds = time.perf_counter() - begin
if me == 0:
    print(f"{sys.argv[1]} steps with an average of 8 MB each took {seconds * 1000:.0f} ms")
ring.shutdown()
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration.

    Args:
        argv: Without the command's name; `None` is `sys.argv[1:]`.

    Returns:
        0; 1 without numpy; or the launcher's exit code where it failed.
    """
    argparse.ArgumentParser(prog="ringcore demo", description="Shows two ranks, a sum, and their timeline.").parse_args(
        argv
    )
    if importlib.util.find_spec("numpy") is None:
        print("ringcore demo sums numpy arrays, and numpy is not installed: pip install numpy", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        timeline = os.path.join(folder, "timeline.json")
        command = [sys.executable, "-m", "ringcore.launcher.main", "-np", "2", "--timeline-filename", timeline]
        command += ["--no-python", sys.executable, "-c", _PROGRAM, str(_STEPS)]
        print("$ ringrun -np 2 python demo.py", flush=True)
        code = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=_LIMIT_S, check=False).returncode
        if code != 0:
            return code
        with open(timeline, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    print("\n".join(picture(events)))
    print("\nNext: ringrun -np 2 python YOUR_SCRIPT.py; `ringcore doctor` tells what works on this machine.")
    return 0


def picture(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Draw when each rank was in an operation.

    Args:
        events: Of a timeline, in microseconds.

    Yields:
        A line for the scale, and one a rank.
    """
    operations = [event for event in events if event.get("cat") == "operation" and "dur" in event]
    if not operations:
        yield "the timeline is empty: all operations were too short for it"
        return
    begin = min(event["ts"] for event in operations)
    length = max(event["ts"] + event["dur"] for event in operations) - begin
    yield f"\ntimeline of {length / 1000:.1f} ms: # communicates, . computes"
    for rank in sorted({event["pid"] for event in operations}):
        bar = ["."] * _COLUMNS
        for event in operations:
            if event["pid"] == rank:
                first = int((event["ts"] - begin) / length * (_COLUMNS - 1))
                last = int((event["ts"] + event["dur"] - begin) / length * (_COLUMNS - 1))
                bar[first : last + 1] = "#" * (last + 1 - first)
        yield f"rank {rank} |{''.join(bar)}|"
