"""Loops of elastic jobs that make no commits: a rank that is told to go leaves, and the others go on without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import Pids, Ringrun, eventually, is_alive

Script = Callable[..., str]
LOOP = """
import numpy as np
import ringcore

write_pid(str(rank))
ringcore.init()
said = 0
while not os.path.exists("end"):
    total = ringcore.allreduce(np.ones(1), op=ringcore.Sum)[0]
    if ringcore.size() != said:
        said = ringcore.size()
        with open(f"size.{rank}", "a") as file:
            file.write(f"{said}\\n")
"""


def sizes(directory: Path, rank: int) -> list[str]:
    path = directory / f"size.{rank}"
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("way", ["drain", "drain although it ignores SIGTERM", "signal"])
def test_a_rank_that_is_told_to_go_leaves_and_the_others_go_on(
    ringrun: Ringrun, script: Script, pids: Pids, way: str
) -> None:
    loop = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{LOOP}" if "ignores" in way else LOOP
    directory, job = ringrun.directory, f"plain-{os.getpid()}"
    with ringrun.started("-np", "3", "--min-np", "1", "--rdzv-id", job, script(loop)) as process:
        eventually(lambda: all(sizes(directory, rank) == ["3"] for rank in range(3)), "all have begun")
        pid = pids.read()["1"]
        if way != "signal":
            words = [sys.executable, "-m", "ringcore", "drain", job, "1"]
            subprocess.run(words, check=True, env=ringrun.environ, capture_output=True)
        else:
            os.kill(pid, signal.SIGTERM)
        eventually(lambda: all(sizes(directory, rank)[-1] == "2" for rank in (0, 2)), "two have gone on")
        eventually(lambda: not is_alive(pid), "the rank has gone")
        (directory / "end").touch()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "failed" not in stderr, "nobody comes in its place, and it is no failure"
    assert [sizes(directory, rank)[:2] for rank in range(3)] == [["3", "2"], ["3"], ["3", "2"]]


def test_a_signal_to_the_launcher_ends_all_of_them(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    words = ["-np", "2", "--min-np", "1", "--shutdown-timeout", "600", script(LOOP)]
    with ringrun.started(*words) as process:
        eventually(lambda: all(sizes(ringrun.directory, rank) == ["2"] for rank in range(2)), "all have begun")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not any(map(is_alive, pids.read().values()))
