"""The backend "ring": how PyTorch finds it, without a launcher, when a rank is lost, and in PyTorch's own tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import on_ranks
from support.processes import LIMIT_S

HERE = Path(__file__).parent
SUITE = str(HERE / "pytorch_suite.py")
ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1"}


def ringrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "ringcore", "run", "-np", str(ranks), sys.executable]


def output(command: list[str], **variables: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env={**ENVIRON, **variables}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


ALONE = """
import sys
from pathlib import Path

import torch.distributed as dist

here, rank, size, meeting = sys.argv[1:]
sys.path.insert(0, here)
import test_collectives

dist.init_process_group("ring", init_method=meeting, rank=int(rank), world_size=int(size))
test_collectives.test_groups_that_overlap_are_used_in_different_orders()
test_collectives.test_two_groups_of_the_same_ranks()
test_collectives.test_a_group_is_made_by_its_members_alone()
dist.destroy_process_group()
"""


def test_without_a_launcher(tmp_path: Path) -> None:
    commands = [
        [sys.executable, "-c", ALONE, str(HERE), str(rank), "3", f"file://{tmp_path}/store"] for rank in range(3)
    ]
    environ = {**ENVIRON, "PYTHONPATH": str(Path(on_ranks.__file__).parents[1])}
    ranks = [subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        errors = [rank.communicate(timeout=LIMIT_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * 3, errors


def test_import_torch_alone_loads_nothing_of_ringcore() -> None:
    code = (
        "import sys, torch; loaded = [name for name in sys.modules if name.startswith('ringcore_torch')]; "
        "backend = torch.distributed.Backend; print(loaded, backend.RING, backend.backend_capability['ring'])"
    )
    assert output([sys.executable, "-c", code]).strip() == "['ringcore_torch_backend'] ring ['cpu', 'cuda']"


def test_a_lost_rank_is_an_error_on_the_others(tmp_path: Path) -> None:
    script = tmp_path / "lost.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('ring')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "for step in range(10):\n"
        "    if step == 5 and dist.get_rank() == 1:\n"
        "        os.kill(os.getpid(), 9)\n"
        "    try:\n"
        "        model(torch.ones(2, 4)).sum().backward()\n"
        "    except RuntimeError as error:\n"
        "        print('LOST', error, flush=True)\n"
        "        os._exit(3)\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(script)], capture_output=True, text=True, timeout=LIMIT_S, check=False, env=ENVIRON
    )
    assert done.returncode != 0
    assert "LOST" in done.stdout and "rank 1" in done.stdout, done.stdout + done.stderr


@pytest.mark.long
def test_pytorchs_own_tests(tmp_path: Path) -> None:
    output([*ringrun(4), SUITE, str(tmp_path)])
    results = json.loads((tmp_path / "results.json").read_text())
    failed = {name: outcome for name, outcome in results.items() if outcome.startswith("failed")}
    assert not failed
    passed = [name for name, outcome in results.items() if outcome == "passed"]
    assert len(passed) >= 100, "PyTorch has renamed what the suite is made of"
    for name, outcome in results.items():
        # What is skipped needs a GPU, or PyTorch skips it for every backend.
        assert outcome == "passed" or "CUDA" in outcome or "github.com/pytorch" in outcome, (name, outcome)
