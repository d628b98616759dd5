"""What is told at import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_core_of_another_version_is_refused(tmp_path: Path) -> None:
    metadata = tmp_path / "ringcore_torch-9.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ringcore-torch\nVersion: 9.9\n")
    done = subprocess.run(
        [sys.executable, "-c", "import ringcore_torch"], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "ImportError: ringcore-torch 9.9 works with ringcore 9.9, but ringcore 0.1.0 is installed" in done.stderr
    assert "pip install ringcore==9.9 ringcore-torch==9.9" in done.stderr


def test_pytorch_attaches_no_recorder_to_groups_that_python_has_made() -> None:
    # As PyTorch has it from 2.15 on, where it would otherwise fail when a group is made.
    program = (
        "from torch.distributed import distributed_c10d\n"
        "distributed_c10d._FR_SELF_RECORDING_BACKENDS = {'gloo'}\n"
        "import ringcore_torch_backend\n"
        "ringcore_torch_backend.register()\n"
        "print(*sorted(distributed_c10d._FR_SELF_RECORDING_BACKENDS))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )  # fmt: skip
    assert done.stdout.split() == ["gloo", "ring"], done.stderr
