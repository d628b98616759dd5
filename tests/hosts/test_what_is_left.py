"""What the hosts of tests leave behind when a test is killed, or when they do not start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.namespaces import Host, namespaces
from support.processes import eventually, is_alive
from support.ranks import TESTS
from support.slurm import slurm

# A test that comes to the point where everything runs: Slurm with a job, and a daemon that has left its parent.
KILLED = """
import os, pathlib, time
from support.namespaces import namespaces, processes_of
from support.processes import eventually
from support.slurm import slurm

def sleeping():
    found = [pid for host in hosts for pid in processes_of(host)]
    return [pid for pid in found if pathlib.Path(f"/proc/{pid}/comm").read_text() == "sleep\\n"]

with namespaces(2, networks=2) as hosts, slurm(hosts, pathlib.Path("slurm").absolute()) as cluster:
    cluster.run(["sbatch", "-N2", "-o", "out", "--wrap", "srun sleep 1000"], os.environ, check=True)
    hosts[1].popen(["setsid", "--fork", "sleep", "1000"]).wait()
    eventually(lambda: len(sleeping()) == 3, "the job and the daemon run")
    pids = [pid for host in hosts for pid in (host.pid, host.switch, *processes_of(host))]
    print(hosts[0].directory, *pids, flush=True)
    time.sleep(1000)
"""


def test_a_test_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=environ, start_new_session=True) as killed:
        assert killed.stdout is not None
        directory, *pids = killed.stdout.readline().decode().split()
        os.killpg(killed.pid, signal.SIGKILL)
    left = [int(pid) for pid in pids]
    eventually(lambda: not any(map(is_alive, left)), f"of {left} all have ended")
    eventually(lambda: not Path(directory).exists(), f"{directory} has gone")


@pytest.fixture
def host() -> Iterator[Host]:
    with namespaces(1, sshd=False) as (made,):
        yield made


def test_a_munge_that_does_not_start_says_why(host: Host, tmp_path: Path) -> None:
    too_long = tmp_path / ("x" * 108)  # for the path of a socket
    with pytest.raises(RuntimeError, match=r"(?s)munged does not start: .*Exceeded maximum length"):  # noqa: SIM117
        with slurm([host], too_long):
            pass
