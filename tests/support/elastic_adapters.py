"""A job of two ranks of which one is killed while it trains with an adapter: the other goes on, and another joins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.elastic import AT_ONCE
from support.processes import Ringrun

_SCRIPT = """
import json, os, signal
{head}

started_as = int(os.environ["RANK"])
is_new = os.path.exists("killed")
ring.init()
{setup}

def tell(event, state):
    line = {{"pid": os.getpid(), "size": ring.size(), "step": state.step, "weights": weights(state)}}
    with open(event, "a") as file:
        file.write(json.dumps(line) + "\\n")

@elastic.run
def train(state):
    tell("begin", state)
    last = state.step + 3 if os.path.exists("killed") and ring.size() == 2 else None
    while state.step != last:
        if started_as == 1 and not is_new and state.step == 5:
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        step(state)
        state.step += 1
        state.commit()
    tell("end", state)

train(state)
"""


def check_recovery(directory: Path, head: str, setup: str, *, goes_on_from: int = 5, **environ: str) -> None:
    """Run the job: whoever has come trains some steps with the other.

    Args:
        directory: For the script.
        head: Imports an adapter as `ring`, and its `elastic`.
        setup: Makes `state`, `step(state)` and `weights(state)`, a list of numbers that differ between processes.
        goes_on_from: The step that the one that is left has kept: the other is lost behind its fifth.
        environ: Variables for the ranks.
    """
    (directory / "train.py").write_text(_SCRIPT.format(head=head, setup=setup))
    ringrun = Ringrun(directory)
    ringrun.environ.update(OMP_NUM_THREADS="1", RINGCORE_TIMEOUT_S="30", **environ)
    done = ringrun("-np", "2", "--min-np", "1", *AT_ONCE, "train.py")
    assert done.returncode == 0, done.stderr
    begun, ended = _told(directory / "begin"), _told(directory / "end")
    assert [line["size"] for line in begun] == [2, 2, 1, 2, 2]
    assert begun[2]["step"] == goes_on_from and begun[2]["pid"] in {line["pid"] for line in begun[:2]}
    assert ended[0]["step"] == begun[3]["step"] + 3
    for pair in (begun[:2], begun[3:], ended):
        assert pair[0]["weights"] == pair[1]["weights"] and pair[0]["step"] == pair[1]["step"]
    assert begun[0]["weights"] != begun[2]["weights"] != ended[0]["weights"]


def _told(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
