"""A job in which one rank ends by itself and takes the others with it: ringrun is to blame the one."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from support.processes import Ringrun

# Ways in which rank 1 ends, and what ringrun makes of them.
_EXIT_CODES = {"raise ValueError('the cause')": 1, "sys.exit(7)": 7, "os._exit(7)": 7}
WAYS = [pytest.param(way, marks=pytest.mark.long if code == 7 else ()) for way, code in _EXIT_CODES.items()]


def check_blame(directory: Path, framework: str, way: str) -> None:
    """Run a job in which rank 1 ends in one of these ways, after two steps together.

    Args:
        directory: For the script.
        framework: Lines that import a framework and its adapter as `ring`, and define `step()`, a collective.
        way: That of a case of `WAYS`.
    """
    program = f"""
import os, sys
{textwrap.dedent(framework)}
ring.init()
step()
step()
if ring.rank() == 1:
    {way}
while True:
    step()
"""
    (directory / "blame.py").write_text(program)
    ringrun = Ringrun(directory)
    ringrun.environ.update(JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="2", OMP_NUM_THREADS="1")
    done = ringrun("-np", "3", "blame.py")
    said = [line for line in done.stderr.splitlines() if line.startswith("ringrun: rank")]
    assert said and said[0].startswith("ringrun: rank 1 of 3"), done.stderr
    assert done.returncode == _EXIT_CODES[way], done.stderr
