"""What the page about elastic jobs says is true: its script trains by its commands, and its options exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ringcore.launcher import _options

PAGE = (Path(__file__).parent.parent / "docs" / "elastic.md").read_text()
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("command", BLOCKS["sh"].splitlines())
def test_its_commands_train_its_script(tmp_path: Path, command: str) -> None:
    (tmp_path / "train.py").write_text(BLOCKS["python"])
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command.split(), cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    said = re.findall(r"trained: (.*)", done.stdout)
    assert len(said) >= 2 and len(set(said)) == 1, done.stdout


def test_its_options_exist() -> None:
    named = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert {"--min-np", "--host-discovery-script", "--reset-limit"} <= named <= {*_options.known_options(), "--nnodes"}
