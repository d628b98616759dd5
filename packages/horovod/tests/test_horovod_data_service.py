"""Horovod's data service: a compute job and a training job, which TensorFlow's servers connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import LIMIT_S, clean_environ

HERE = Path(__file__).parent


def start(directory: Path, *words: str) -> subprocess.Popen[str]:
    launcher = Path(sys.executable).with_name("horovodrun")
    return subprocess.Popen(
        [str(launcher), *words[:2], sys.executable, *words[2:]], text=True, cwd=directory,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**clean_environ(), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"},
    )  # fmt: skip


@pytest.mark.parametrize(("side", "workers"), [pytest.param("training", 2, marks=pytest.mark.long), ("compute", 1)])
def test_two_ranks_share_what_the_compute_job_prepares(tmp_path: Path, side: str, workers: int) -> None:
    module = "horovod.tensorflow.data.compute_worker"
    jobs = [
        start(tmp_path, "-np", str(workers), "-m", module, "config.json", f"--dispatcher-side={side}", "--timeout=90"),
        start(tmp_path, "-np", "2", str(HERE / "script_data_service.py"), "config.json", "found.json"),
    ]
    try:
        # The training first: it ends the compute job.
        printed = [job.communicate(timeout=LIMIT_S)[0] for job in reversed(jobs)]
    finally:
        for job in jobs:
            job.kill()
    assert [job.returncode for job in jobs] == [0, 0], printed
    shares = json.loads((tmp_path / "found.json").read_text())
    assert len(shares) == 2
    assert sorted(shares[0] + shares[1]) == list(range(0, 600, 3))
    # The file has led nowhere since the compute job ended, and its key is worth nothing.
    assert os.listdir(tmp_path) == ["found.json"]
