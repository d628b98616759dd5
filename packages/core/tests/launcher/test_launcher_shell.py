"""Names that others give reach no shell and no option of ssh: of hosts, of jobs, of folders and in variables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import Ringrun

MARK = "touch mark"
NAMES = [
    f"-oProxyCommand={MARK}",
    f"user@-oProxyCommand={MARK}",
    f"node1;{MARK}",
    f"node1$({MARK})",
    f"node1`{MARK}`",
    f"node1\n{MARK}",
    f"node1|{MARK}",
    f"node1&&{MARK}",
    f"[::1];{MARK}",
    f"node1:1;{MARK}",
]


@pytest.fixture
def calls(ringrun: Ringrun, tmp_path: Path) -> Path:
    """An `ssh` that notes that it was called, and what a shell at the far end would be told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    ssh = folder / "ssh"
    ssh.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >> "$CALLS"\nfor word; do last=$word; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    calls = tmp_path / "calls"
    ringrun.environ |= {"PATH": f"{folder}:{ringrun.environ['PATH']}", "CALLS": str(calls)}
    return calls


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_host_is_understood_as_anything_else(
    ringrun: Ringrun, calls: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "hosts").write_text(f"{name}\n")
    (tmp_path / "options.json").write_text(f'{{"hosts": {name!r}}}'.replace("'", '"'))
    for words in (["-H", name], [f"--hosts=node1,{name}"], ["--hostfile", "hosts"], ["--config-file", "options.json"]):
        result = ringrun(*words, "-np", "1", "true")
        assert result.returncode == 2, (words, result)
        assert "Traceback" not in result.stderr
    assert not calls.exists()
    assert not (tmp_path / "mark").exists()


def test_what_a_job_is_told_comes_to_its_ranks_as_it_is(
    ringrun: Ringrun, script: Callable[[str], str], calls: Path, tmp_path: Path
) -> None:
    wild = f"a b;{MARK} $({MARK}) `{MARK}`\n{MARK}\n'\"-oProxyCommand={MARK}"
    name = script("print([os.environ['WILD'], sys.argv[1], os.getcwd()])")
    folder = tmp_path / f"in; {MARK} $(x)"
    folder.mkdir()
    ringrun.environ |= {"WILD": wild, "RINGCORE_JOB_ID": "j;touch${IFS}mark|`touch${IFS}mark`"}
    program = str(tmp_path / name)
    result = ringrun(
        "-np", "1", "-H", "192.0.2.1:1", "--workdir", str(folder), "-x", "WILD", sys.executable, program, wild
    )
    assert result.returncode == 0, result.stderr
    assert repr([wild, wild, str(folder)]) in result.stdout
    assert "192.0.2.1" in calls.read_text()
    assert not list(tmp_path.rglob("mark"))
