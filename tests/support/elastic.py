"""A training script for elastic jobs, and what its ranks tell."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.processes import eventually

Script = Callable[..., str]
# A failed rank is started again.
AT_ONCE = ["--blacklist-cooldown-range", "0.01", "0.01"]

# Each rank adds up ones, a commit a step. `before` may do something before a step; `goes_on` says when to end, alike on
# all ranks.
_TRAIN = """
import json
import numpy as np
import ringcore
from ringcore import elastic

life = len([name for name in os.listdir() if name.startswith(f"life.{rank}.")])
open(f"life.{rank}.{life}", "w").close()
{first}
write_pid(f"{rank}.{life}")
ringcore.init()
{prepares}

def tell(event, state):
    line = {"event": event, "place": rank, "pid": os.getpid(), "rank": ringcore.rank(), "size": ringcore.size()}
    line["local_rank"] = ringcore.local_rank()
    engine = ringcore.job.state.context().began
    with open("told", "a") as file:
        file.write(json.dumps({**line, "engine": engine, "step": state.step, "total": state.total}) + "\\n")

def stop_is_wished():
    return ringcore.allreduce(np.array([os.path.exists("stop")]), op=ringcore.Max)[0]

@elastic.run
def train(state):
    tell("begin", state)
    while {goes_on}:
        {before}
        total = ringcore.allreduce(np.ones(5), op=ringcore.Sum)
        state.total += float(total[0])
        state.step += 1
        state.commit()
    tell("end", state)

train({state})
"""


def train(
    script: Script, *, before: str = "pass", goes_on: str = "not stop_is_wished()", first: str = "",
    prepares: str = "", state: str = "elastic.ObjectState(step=0, total=0.0)",
) -> str:  # fmt: skip
    """Write the script.

    Args:
        script: Writes it.
        before: What a rank does before each step.
        goes_on: Whether there is another step; the same on all ranks.
        first: What a process does before it is connected with others.
        prepares: What it does from then until it can train.
        state: What is kept.
    """
    parts = {"before": before, "goes_on": goes_on, "first": first, "prepares": prepares, "state": state}
    return script(functools.reduce(lambda text, part: text.replace(f"{{{part}}}", parts[part]), parts, _TRAIN))


def told(directory: Path, event: str) -> list[dict[str, Any]]:
    """What ranks have left word of: at the "begin" of each call of their training function, and at its "end".

    An "engine" is another one after each meeting.
    """
    path = directory / "told"
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # Of a line that crosses a page, a reader may see the half.
    return [line for line in map(json.loads, whole.splitlines()) if line["event"] == event]


def begun(directory: Path, count: int) -> list[dict[str, Any]]:
    """Wait until so many calls have begun, and return what they told."""
    eventually(lambda: len(told(directory, "begin")) >= count, f"{count} calls have begun")
    return told(directory, "begin")[:count]


def engines(lines: Sequence[dict[str, Any]]) -> set[tuple[int, float]]:
    """Which processes told these, and since when each of them has been connected with others."""
    return {(line["pid"], line["engine"]) for line in lines}


class HostScript:
    """A discovery script that prints what it is told to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "discover.sh").write_text("#!/bin/sh\ncat hosts\n")
        (directory / "discover.sh").chmod(0o755)
        self.words = ["--host-discovery-script", "./discover.sh"]

    def print(self, names: Sequence[str]) -> None:
        (self._directory / "hosts.new").write_text("\n".join(names))
        os.rename(self._directory / "hosts.new", self._directory / "hosts")
