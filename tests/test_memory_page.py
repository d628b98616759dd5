"""What docs/memory.md says is true: its C code compiles against what is installed, and runs on two ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support import ranks

PAGE = (Path(__file__).parent.parent / "docs" / "memory.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def blocks_of(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


def test_the_c_code_compiles_against_the_wheel_and_runs_on_two_ranks(tmp_path: Path) -> None:
    (c_code,), (commands,) = blocks_of("c"), blocks_of("sh")
    (tmp_path / "mean.c").write_text(c_code)
    (tmp_path / "mean.py").write_text(blocks_of("python")[-1])
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands.splitlines():
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert sorted(line for line in done.stdout.splitlines() if "rank" in line)[0].endswith("rank 0: 0.5")
    assert done.stdout.count(": 0.5") == 2


def shared_arrays(reduced: str, gathered: str) -> dict:
    import numpy
    import ringcore

    ringcore.init()
    rows, columns = 3, 2
    scope = {
        "numpy": numpy, "ringcore": ringcore, "rows": rows, "columns": columns,
        "compute": lambda: numpy.full(1_000_000, 2.0 * ringcore.rank()),
    }  # fmt: skip
    memory = ringcore.job.state.context().memory
    exec(reduced, scope)
    gradients = scope["gradients"]
    # The place of this rank's rows is in the array that they are gathered into.
    lines = gathered.splitlines()
    exec(lines[0], scope)
    scope["everything"][ringcore.rank() * rows :][:rows] = ringcore.rank()
    exec(lines[1], scope)
    half = ringcore.empty((2, 3), "float16")
    empty = ringcore.empty((0, 4))
    ringcore.shutdown()
    gradients += 1
    return {
        "registered": memory is not None,
        "mean": float(gradients.mean()),
        "rows": scope["everything"][:, 0].tolist(),
        "half": (str(half.dtype), half.shape),
        "empty": empty.shape,
    }


def test_the_python_code_runs_and_arrays_outlive_the_job(tmp_path: Path) -> None:
    for found in ranks.run(shared_arrays, 2, tmp_path, *blocks_of("python")[:2]):
        assert found == {
            "registered": True, "mean": 2.0, "rows": [0.0] * 3 + [1.0] * 3, "half": ["float16", [2, 3]],
            "empty": [0, 4],
        }  # fmt: skip
