"""A plain training loop of an elastic job: a rank that is told to go leaves behind a whole step."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support.processes import Ringrun, eventually

TRAIN = """
import os

import ringcore_torch as ring
import torch

ring.init()
place = ring.rank()
model = torch.nn.Linear(4, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = ring.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters(), op=ring.Sum
)
with open(f"pid.{place}", "w") as file:
    file.write(str(os.getpid()))
weights, ended = [], None
try:
    while not os.path.exists("end"):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        weights.append(-model.weight[0, 0].item())
        if len(weights) == 2:
            open(f"trains.{place}", "w").close()
except SystemExit as error:
    ended = error.code
    weights.append(-model.weight[0, 0].item())
    raise
finally:
    with open(f"ended.{place}", "w") as file:
        print(ended, *weights, file=file)
"""


def test_who_leaves_has_made_its_last_step_with_the_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    ringrun = Ringrun(tmp_path)
    ringrun.environ.update(OMP_NUM_THREADS="1")
    with ringrun.started("-np", "3", "--min-np", "1", "train.py") as process:
        eventually(lambda: all((tmp_path / f"trains.{place}").exists() for place in range(3)), "all train")
        os.kill(int((tmp_path / "pid.1").read_text()), signal.SIGTERM)
        eventually((tmp_path / "ended.1").exists, "the rank has left")
        (tmp_path / "end").touch()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    ended, *left = (tmp_path / "ended.1").read_text().split()
    assert ended == "0", "it ends as a program does that has nothing more to do"
    for place in (0, 2):
        _, *weights = (tmp_path / f"ended.{place}").read_text().split()
        assert weights[: len(left)] == left, "the step in which it left is one of all three"
