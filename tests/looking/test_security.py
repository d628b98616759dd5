"""`ringcore doctor --security`: what a running job has open, and what is wrong with it."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.namespaces import Host, environ_with_ssh, namespaces
from support.processes import LIMIT_S, RINGRUN, clean_environ, eventually

PROGRAM = """
import os, socket, sys, time
import numpy as np
import ringcore

ringcore.init()
ringcore.allreduce(np.ones(1 << 20, np.float32), name="large")
if "listens" in sys.argv and ringcore.rank() == 1:
    listener = socket.create_server(("", 0))
open(f"ready.{ringcore.rank()}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
ringcore.shutdown()
"""


@contextlib.contextmanager
def looked_at(folder: Path, *options: str, host: Host | None = None) -> Iterator[tuple[int, str]]:
    """The exit code and the words of the doctor about a job of two ranks."""
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    environ = {**clean_environ(), "XDG_RUNTIME_DIR": str(runtime)}
    if host is not None:
        environ = environ_with_ssh(host, environ)
    (folder / "train.py").write_text(PROGRAM)

    def started(command: list[str]) -> list[str]:
        return command if host is None else host.command(command, folder)

    def without_core_files() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with subprocess.Popen(
        started([*RINGRUN, "-np", "2", *options]), cwd=folder, env=environ, stdin=subprocess.DEVNULL,
        preexec_fn=without_core_files,
    ) as job:  # fmt: skip
        try:
            eventually(lambda: len([*folder.glob("ready.*")]) == 2, "both ranks run", LIMIT_S)
            (folder_of_job,) = (runtime / f"ringcore-{os.getuid()}" / "jobs").iterdir()
            if "listens" in options:
                folder_of_job.chmod(0o750)
            done = subprocess.run(
                started([sys.executable, "-m", "ringcore", "doctor", "--security"]), env=environ, capture_output=True,
                text=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
            (folder / "go").touch()
            assert job.wait(LIMIT_S) == 0
            yield done.returncode, done.stdout + done.stderr
        finally:
            job.kill()


def test_a_job_as_it_should_be_has_no_problems(tmp_path: Path) -> None:
    with looked_at(tmp_path, "--transport", "tcp", sys.executable, "train.py") as (code, said):
        assert code == 0 and said.endswith("problems\n  none\n"), said
        assert said.count("TCP connections inside this host") == 2
        assert "TCP socket that listens on 127.0.0.1" in said
        assert "rank.0.watch, in a folder of mode 700" in said


def test_what_is_wrong_with_a_job_is_told(tmp_path: Path) -> None:
    with looked_at(tmp_path, sys.executable, "train.py", "listens") as (code, said):
        assert code == 1
        problems = said.partition("\nproblems\n")[2]
        assert problems.count("it listens on every network (port ") == 1 and ": name one with" in problems
        assert problems.count("others may look into") == 3 and "chmod 700" in problems, said
        assert "memory ringcore, without a name in any folder, its size is sealed" in said


@pytest.mark.parametrize("encryption", ["auto", "off"])
def test_clear_text_between_hosts_is_told(tmp_path: Path, encryption: str) -> None:
    with namespaces(2) as hosts:
        options = ("-H", "host0:1,host1:1", "--encryption", encryption, sys.executable, "train.py")
        with looked_at(tmp_path, *options, host=hosts[0]) as (code, said):
            assert f"TCP connections to {hosts[1].address}" in said, said
            assert f"rank 1 runs on {hosts[1].name}: ask there, too" in said
            assert ("rank 0" in said.partition("problems\n")[2]) == (encryption == "off"), said
            assert ("is not encrypted: start the job without --encryption off" in said) == bool(code)
