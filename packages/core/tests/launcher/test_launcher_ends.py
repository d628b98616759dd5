"""What must not keep the launcher from ending, or make it write where nobody meant it to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from ringcore.launcher._job import HostJob, RankJob
from ringcore.launcher._loop import Loop
from ringcore.launcher._supervisor import Supervisor
from ringcore.launcher.agent import Agent
from support.processes import Pids, Ringrun, eventually, is_alive

Script = Callable[..., str]


def test_an_ssh_that_does_not_end_is_killed(ringrun: Ringrun, pids: Pids) -> None:
    folder = ringrun.directory / "bin"
    folder.mkdir()
    # It starts another process, as a user's wrapper would, and neither listens to SIGTERM.
    write = "write_pid() { echo $2 > new.$1; mv new.$1 pid.$1; }\nsleep 600 &\nwrite_pid child $!\nwrite_pid ssh $$\n"
    text = f"#!/bin/sh\ntrap '' TERM\n{write}while :; do sleep 600; done\n"
    (folder / "ssh").write_text(text)
    (folder / "ssh").chmod(0o755)
    ringrun.environ["PATH"] = f"{folder}{os.pathsep}{ringrun.environ['PATH']}"
    with ringrun.started("-H", "127.0.0.2:1", "--start-timeout", "0.5", "true") as process:
        found = pids.wait(2)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and "host 127.0.0.2 did not answer within 0.5 s" in said
    eventually(lambda: not any(map(is_alive, found.values())), "nothing of ssh is left")


@pytest.mark.parametrize(
    ("closed", "code", "told"),
    [
        ("<&-", 0, "0 0\n"),
        (">&-", 1, "ringrun: standard output ends here: Bad file descriptor\n"),
        ("<&- >&-", 1, "ringrun: standard output ends here: Bad file descriptor\n"),
        ("2>&-", 0, "0 0\n"),
        ("<&- >&- 2>&-", 1, ""),
    ],
)
def test_standard_streams_may_be_closed(ringrun: Ringrun, script: Script, closed: str, code: int, told: str) -> None:
    # What is opened next must not take their places: the ranks' lines would be written into it.
    name = script("import ringcore\nringcore.init()\nprint(0, len(sys.stdin.read()), flush=True)")
    done = ringrun("-np", "2", name, prefix=["sh", "-c", f'exec "$@" {closed}', "sh"])
    assert done.returncode == code, done
    assert told in done.stdout + done.stderr


def test_a_guard_that_was_stopped_is_not_waited_for() -> None:
    program = """
import os, signal
from ringcore.launcher import _guard
_guard.LIMIT_S = 0.1
guard = _guard.Guard.start()
os.kill(guard._pid, signal.SIGSTOP)
guard.close()
try:
    os.waitpid(guard._pid, os.WNOHANG)
except ChildProcessError:
    print("it is gone")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "it is gone\n"


@pytest.mark.parametrize("end", [lambda job: Supervisor._begin_stop(job, signal.SIGTERM, 1.0), Supervisor._kill])
def test_a_host_that_is_found_to_have_gone_while_all_are_ended_keeps_no_other_one(end: Callable[[Any], None]) -> None:
    job = mock.MagicMock(_open={0, 1, 2}, _killed=False, _hosts={index: mock.MagicMock() for index in range(3)})
    for index, host in job._hosts.items():
        host.signal.side_effect = host.kill.side_effect = lambda *_, index=index: job._open.discard(index)
    end(job)
    assert all(host.method_calls for host in job._hosts.values())


def test_as_the_first_process_of_a_container_it_ends_what_its_ranks_leave_behind(
    ringrun: Ringrun, script: Script
) -> None:
    # What a rank leaves is then a child of ringrun's: it stays in its group until somebody asks how it has ended.
    name = script("subprocess.Popen(['sleep', '600'])")
    done = ringrun("-np", "2", name, prefix=["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"], timeout=60)
    assert done.returncode == 0, done


def test_an_agent_that_is_closed_leaves_nothing_open_and_is_called_no_more() -> None:
    loop, events = Loop(), mock.MagicMock()
    before = set(os.listdir("/proc/self/fd"))
    agent = Agent(loop, mock.MagicMock(), events)
    agent.start(HostJob((RankJob(0, {}),), ("sleep", "600"), "/", {"OMP_NUM_THREADS": "1"}, {}))
    agent.close()
    assert set(os.listdir("/proc/self/fd")) == before
    loop.call_later(0, lambda: None)
    loop.run_once()
    assert not events.method_calls
