"""Tests that run on every rank of a job: what they check stands where they check it.

A function marked `@on(Start(2), Start(2, "tcp"))` is run by pytest on both ranks of either job. All tests of a session
that are in one folder and on the same start share one start of its ranks: `ringrun python -m pytest` runs them one
after the other and writes down what became of each. When one fails, the ranks end: those behind it fail too, and say
so.

A package's conftest.py imports the hooks from here. What a folder's conftest.py makes a job of is for its tests alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# In a rank: where it writes its part.
_FOLDER = os.environ.get("ON_RANKS_FOLDER")
# Where tests make tensors that do not say it: "cpu" or "cuda".
DEVICE = os.environ.get("ON_RANKS_DEVICE", "cpu")
IN_A_RANK = _FOLDER is not None
_LIMIT_S = 600
_SAID_CHARACTERS = 6000


@dataclasses.dataclass(frozen=True)
class Start:
    """How the ranks are started.

    Attributes:
        ranks: How many.
        transport: `RINGCORE_TRANSPORT`.
        device: "cuda" needs a GPU: the session `gpu_torch` says with RINGCORE_TEST_GPUS that there is one.
        variables: Others of their environment.
        launcher: "ringrun" or "torchrun".
        servers: How many stand beside the ranks.
    """

    ranks: int
    transport: str = "shm"
    device: str = "cpu"
    variables: tuple[tuple[str, str], ...] = ()
    launcher: str = "ringrun"
    servers: int = 0

    @property
    def command(self) -> list[str]:
        """What starts a module of Python, named behind it, on all ranks."""
        if self.launcher == "torchrun":
            return [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={self.ranks}", "-m"]
        servers = ["--servers", str(self.servers)] if self.servers else []
        return [sys.executable, "-m", "ringcore", "run", "-np", str(self.ranks), *servers, sys.executable, "-m"]

    def __str__(self) -> str:
        place = "gpu" if self.device == "cuda" else self.transport
        launcher = [self.launcher] if self.launcher != "ringrun" else []
        servers = [f"{self.servers}-servers"] if self.servers else []
        return "-".join([str(self.ranks), place, *launcher, *servers, *(value for _, value in self.variables)])


TWO = Start(2)
THREE = Start(3)
# Over TCP buckets are reduced during backward; in shared memory only where the machine has a core to spare for it.
TWO_OVER_TCP = Start(2, "tcp")
THREE_OVER_TCP = Start(3, "tcp")
ONE_ON_A_GPU = Start(1, device="cuda")
TWO_ON_GPUS = Start(2, device="cuda")  # they share it where there is only one


def on(*starts: Start) -> Callable[[Any], Any]:
    """Run a test on the ranks of each of these starts; behind the first one of them it is marked `long`."""

    def mark(test: Any) -> Any:
        cases = [starts[0], *(pytest.param(start, marks=pytest.mark.long) for start in starts[1:])]
        with_start = pytest.mark.parametrize("start", cases, ids=str, indirect=True)(test)
        return pytest.mark.usefixtures("start")(with_start)

    return mark


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Start:
    """What the test is run on."""
    asked: Start = request.param
    return asked


@pytest.fixture
def shared_folder(request: pytest.FixtureRequest) -> Path:
    """In a rank: a folder of this test that is the same on all of them."""
    if _FOLDER is None:
        outside: Path = request.getfixturevalue("tmp_path")
        return outside
    folder = Path(_FOLDER, "tests", re.sub(r"\W+", "-", request.node.nodeid))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Outside of the ranks: look what became of the test there."""
    asked = _start_of(pyfuncitem)
    if asked is None or _FOLDER:
        return None
    if asked.device == "cuda" and "RINGCORE_TEST_GPUS" not in os.environ:
        pytest.skip("there is no GPU here; nox -s gpu runs this where there is one")
    job = _jobs(pyfuncitem.session).setdefault((asked, pyfuncitem.path.parent), _Job())
    if job.reports is None:
        job.run(asked, pyfuncitem)
    wrong = job.failures(pyfuncitem.nodeid)
    if wrong:
        pytest.fail("\n\n".join(wrong), pytrace=False)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In a rank: write down what became of the test."""
    if _FOLDER and (report.when == "call" or report.failed):
        line = json.dumps([report.nodeid, report.longreprtext if report.failed else None])
        with Path(_FOLDER, os.environ["RANK"]).open("a") as file:
            file.write(line + "\n")


class _Job:
    """One start of the ranks, and what they wrote down."""

    def __init__(self) -> None:
        self.reports: list[dict[str, str | None]] | None = None
        self._said = ""

    def run(self, asked: Start, first: pytest.Function) -> None:
        beside = [item for item in first.session.items if item.path.parent == first.path.parent]
        tests = [item.nodeid for item in beside if _start_of(item) == asked]
        folder: Path = first._request.getfixturevalue("tmp_path_factory").mktemp(str(asked))
        chosen = folder / "chosen"
        chosen.write_text("\n".join(tests))
        done = subprocess.run(
            # A rank's warnings are its own; what it leaves open is found where a test asks for it.
            [*asked.command, "pytest", "-x", "-q", "-pno:cacheprovider", "-ofilterwarnings=default", f"@{chosen}"],
            cwd=first.config.rootpath, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
            env={
                **os.environ, "OMP_NUM_THREADS": "1", "RINGCORE_TRANSPORT": asked.transport,
                "RINGCORE_HEARTBEAT_S": "30",  # more ranks than processors, beside other suites, may be silent for long
                **dict(asked.variables),
                "ON_RANKS_FOLDER": str(folder), "ON_RANKS_DEVICE": asked.device,
            },
        )  # fmt: skip
        files = [folder / str(rank) for rank in range(asked.ranks)]
        lines = [file.read_text().splitlines() if file.exists() else [] for file in files]
        self.reports = [dict(map(json.loads, reports)) for reports in lines]
        self._said = f"{asked.launcher} returned {done.returncode}: {(done.stdout + done.stderr)[-_SAID_CHARACTERS:]}"

    def failures(self, test: str) -> list[str]:
        """What the ranks say of a test that did not pass on all of them."""
        every = list(enumerate(self.reports or []))
        wrong = [f"rank {rank}:\n{reports[test]}" for rank, reports in every if reports.get(test)]
        missing = [rank for rank, reports in every if test not in reports]
        if missing:
            wrong.append(f"ranks {missing} did not come to the end of it. {self._said}")
        return wrong


_JOBS = pytest.StashKey[dict[tuple[Start, Path], _Job]]()


def _jobs(session: pytest.Session) -> dict[tuple[Start, Path], _Job]:
    return session.stash.setdefault(_JOBS, {})


def _start_of(item: pytest.Item) -> Start | None:
    called = getattr(item, "callspec", None)
    found = called.params.get("start") if called is not None else None
    return found if isinstance(found, Start) else None
