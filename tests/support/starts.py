"""One start of the ranks that serves many tests: `ringrun python WORKER FOLDER CASE...`.

A worker writes what each rank found to FOLDER/<case>.<rank>.json. A test module makes a fixture of each start, and
imports `results`; `on` says which of the starts a test is about. A start with device="cuda" needs a GPU: session
`gpu_torch` says with RINGCORE_TEST_GPUS that there is one, and the worker learns it from TEST_DEVICE.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Case -> what each rank found.
Findings = dict[str, list[dict[str, Any]]]


def start(worker: Path, folder: Path, ranks: int, *cases: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run cases of a worker, one after the other."""
    command = [sys.executable, "-m", "ringcore", "run", "-np", str(ranks), sys.executable, str(worker), str(folder)]
    return subprocess.run(
        [*command, *cases], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip


def read_findings(folder: Path, ranks: int, *cases: str) -> Findings:
    return {case: [json.loads((folder / f"{case}.{rank}.json").read_text()) for rank in range(ranks)] for case in cases}


def start_for(
    worker: Path, ranks: int, transport: str, *cases: str, device: str = "cpu"
) -> Callable[[pytest.TempPathFactory], Findings]:
    """A fixture: what one start of the ranks found in all these cases, with tensors on a device."""

    @pytest.fixture(scope="module")
    def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
        if device == "cuda" and "RINGCORE_TEST_GPUS" not in os.environ:
            pytest.skip("there is no GPU here; nox -s gpu runs this where there is one")
        folder = tmp_path_factory.mktemp(f"{transport}-{ranks}")
        done = start(worker, folder, ranks, *cases, RINGCORE_TRANSPORT=transport, TEST_DEVICE=device)
        assert done.returncode == 0, done.stdout + done.stderr
        return read_findings(folder, ranks, *cases)

    return findings


@pytest.fixture
def results(request: pytest.FixtureRequest) -> Findings:
    """Of the start that the test is run on."""
    return dict(request.getfixturevalue(request.param))


def on(*starts: str) -> pytest.MarkDecorator:
    """Run a test once on what each of these starts found; its argument is `results`."""
    return pytest.mark.parametrize("results", starts, indirect=True)
