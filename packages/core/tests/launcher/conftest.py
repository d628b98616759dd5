"""Fixtures of the launcher's tests."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes import WRITE_PID, Pids, Ringrun


@pytest.fixture
def ringrun(tmp_path: Path) -> Ringrun:
    return Ringrun(tmp_path)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Writes a script for the ranks; returns its path."""

    def write(text: str, name: str = "script.py") -> str:
        head = f"import os, sys, time, signal, subprocess\nrank = int(os.environ['RANK'])\n{WRITE_PID}"
        (tmp_path / name).write_text(head + textwrap.dedent(text))
        return name

    return write


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Pids]:
    found = Pids(tmp_path)
    yield found
    found.kill()
