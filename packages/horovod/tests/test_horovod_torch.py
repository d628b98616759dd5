"""What is Horovod's and not ringcore's: arithmetic of integers, gradients, cycles, the optimizer's attributes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("script_torch.py")
# On rank 0 of 2. Gradients of results are those that a check names, doubled on rank 1.
EXPECTED: dict[str, Any] = {
    # Cut towards zero: before the sum, and after it.
    "integers": [[1, -1], [1, -1], [0.75, -0.75], [2, -2], [2], [1, -1], [50], [1], [1]],
    "arguments": [[2.0, 2.0], [1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [2.0], [0.0, 1.0], [1, 1]],
    "gradient_of_allgather": [3.0],
    "gradients_of_grouped_allgather": [[3.0], [1.5, 3.0]],
    "gradient_of_broadcast": [[3.0], [0.0]],
    "gradient_of_allreduce": [[9.0], [18.0], [12.0]],
    "gradient_of_reducescatter": [[3.0, 6.0], [6.0, 12.0], [2.0, 4.0]],
    "gradient_of_alltoall": [[1.0, 2.0, 2.0], [1, 1], "torch.int32"],
    # Of the gradients as Horovod has them: allgather's and broadcast's average once more.
    "second_derivatives": [
        [5760.0, 2949120.0], [252.0, 129024.0], [252.0, 129024.0], [360.0, 184320.0], [360.0, 184320.0],
    ],
    "a_cycle_is_not_over_at_once": [False, "'allreduce.twice': ", [1.0, 1.0], [1.0], True],
    "splits_of_another_dtype": "alltoall takes splits of torch.int32, not torch.float32",
    "sparse_gradients": [[True, [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]]] * 2,
    "the_optimizer": [
        ["allreduce.noname.0.0", "allreduce.noname.1.0"], [[0.0]],
        ["optimizer.step() called without optimizer.skip_synchronize(): t"],
    ],
    "timeline": [["ALLREDUCE", "NEGOTIATE_ALLREDUCE"], "start_time_since_epoch_in_micros"],
}  # fmt: skip


# The last of 3 ranks is not in the process set.
OUTSIDE = """
import horovod.torch as hvd
import torch

hvd.init()
members = hvd.add_process_set([0, 1])
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=1.0)
optimizer = hvd.DistributedOptimizer(optimizer, [("weight", weight)], process_set=members)
for _ in range(2):
    optimizer.zero_grad()
    (weight * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
(weight * (hvd.rank() + 1)).sum().backward()
optimizer.synchronize()
with optimizer.skip_synchronize():
    optimizer.step()
weights = hvd.allgather(weight.detach()).tolist()
if hvd.rank() == 0:
    print(weights)
"""


def ran(ranks: int, *program: str) -> str:
    ringrun = Path(sys.executable).with_name("ringrun")
    done = subprocess.run(
        [str(ringrun), "-np", str(ranks), sys.executable, *program],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("horovod") / "found"
    ran(2, str(SCRIPT), str(path))
    result: dict[str, Any] = json.loads(path.read_text())
    return result


@pytest.mark.parametrize("name", EXPECTED)
def test_as_horovod_does_it(found: dict[str, Any], name: str) -> None:
    assert found[name] == EXPECTED[name]


def test_a_rank_that_is_not_in_the_process_set_steps_alone() -> None:
    # Nobody drops the gradients of the second step, so that those of the third come on top: of members 1.5, 1.5 and 3.
    assert "[-6.0, -6.0, -12.0]" in ran(3, "-c", OUTSIDE)
