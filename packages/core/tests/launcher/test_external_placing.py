"""Ranks as children of tasks that a scheduler places: here plain processes stand for its workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ringcore.launcher._frames import HEADER, Kind
from ringcore.launcher._job import HostJob, RankJob
from ringcore.launcher.external import LaunchError, PlacedJob, RankError
from support.processes import Pids, clean_environ, eventually, is_alive

TASK = """
import sys
from ringcore.launcher.external import host_rank
ticket, call = (bytes.fromhex(sys.stdin.readline()) for _ in range(2))
host_rank(ticket, call, {"OF_TASK": sys.argv[1]})
print("the task goes on", flush=True)
"""
FUNCTIONS = """
import os, signal, sys, time
import numpy as np

def write_pid(name):
    with open(f"new.{name}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"new.{name}", f"pid.{name}")

def total(value):
    import ringcore as ring
    ring.init()
    print("hello from", ring.rank())
    place = [ring.rank(), ring.size(), ring.local_rank(), ring.local_size(), int(os.environ["LOCAL_RANK"])]
    return [*place, float(ring.allreduce(np.full(3, value + ring.rank()), op=ring.Sum)[0]), os.environ["OF_TASK"]]

def ends(how):
    import ringcore as ring
    ring.init()
    write_pid(ring.rank())
    if ring.rank() == 1:
        ring.barrier()
        if how == "raise":
            raise LookupError("no such row")
        if how == "exit":
            sys.exit(7)
        os.kill(os.getpid(), signal.SIGSEGV)
    ring.barrier()
    ring.allreduce(np.ones(8))

def waits():
    import ringcore as ring
    ring.init()
    write_pid(ring.rank())
    ring.barrier()
    time.sleep(1000)
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import functions

    yield functions
    del sys.modules["functions"]


Place = Callable[[PlacedJob], list["subprocess.Popen[str]"]]


@pytest.fixture
def place() -> Iterator[Place]:
    """Starts the tasks of a job, as a scheduler does."""
    with contextlib.ExitStack() as stack:

        def start(job: PlacedJob, count: int | None = None) -> list[subprocess.Popen[str]]:
            return [
                stack.enter_context(start_task(job, index)) for index in range(job.size if count is None else count)
            ]

        yield start


@contextlib.contextmanager
def start_task(job: PlacedJob, index: int) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", TASK, f"task {index}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environ(),
    ) as task:  # fmt: skip
        assert task.stdin is not None
        task.stdin.write(f"{job.ticket(index).hex()}\n{job.call.hex()}\n")
        task.stdin.close()
        try:
            yield task
        finally:
            task.kill()


def said_by(tasks: list[subprocess.Popen[str]]) -> list[str]:
    return [task.stdout.read() for task in tasks if task.stdout is not None]


def test_results_in_order_output_as_it_comes_and_tasks_that_go_on(
    functions: Any, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with PlacedJob(2, functions.total, (10.0,), env={"SOME_NAME": "x"}) as job:
        tasks = place(job)
        assert job.results() == [[0, 2, 0, 2, 0, 21.0, "task 0"], [1, 2, 1, 2, 1, 21.0, "task 1"]]
    assert sorted(capsys.readouterr().out.splitlines()) == [f"[{r}]<stdout> hello from {r}" for r in range(2)]
    assert said_by(tasks) == ["the task goes on\n"] * 2


@pytest.mark.parametrize(
    ("how", "said", "cause"),
    [
        ("raise", "rank 1 raised LookupError: no such row", LookupError),
        ("exit", "rank 1 raised SystemExit: 7", SystemExit),
        ("segv", "rank 1 of 2 on .* was killed by SIGSEGV", type(None)),
    ],
)
def test_a_rank_that_ends_badly_is_the_error_and_harms_no_task(
    functions: Any, place: Place, how: str, said: str, cause: type
) -> None:
    with PlacedJob(2, functions.ends, (how,)) as job:
        tasks = place(job)
        with pytest.raises(RankError, match=said) as caught:
            job.results()
    assert caught.value.rank == 1
    assert isinstance(caught.value.original, cause)
    assert said_by(tasks) == ["the task goes on\n"] * 2
    assert not any(map(is_alive, Pids(Path()).read().values()))


def test_a_task_that_is_killed_takes_its_rank_along_and_is_the_error(functions: Any, place: Place) -> None:
    with PlacedJob(2, functions.waits) as job:
        tasks = place(job)
        pids = Pids(Path()).wait(2)
        killed_at = time.monotonic()
        tasks[1].kill()
        with pytest.raises(RankError, match=r"host .*\(task 1\): its agent has gone"):
            job.results()
        eventually(lambda: not any(map(is_alive, pids.values())), "no rank is left", 30)
        assert time.monotonic() - killed_at < 30
    assert said_by(tasks[:1]) == ["the task goes on\n"]


def test_what_the_scheduler_hears_of_first_is_told_with_its_rank(functions: Any, place: Place) -> None:
    with PlacedJob(2, functions.waits) as job:
        tasks = place(job)
        pids = Pids(Path()).wait(2)
        launcher = job._launcher._popen.pid
        os.kill(launcher, signal.SIGSTOP)
        tasks[1].kill()
        job.abandon()
        os.kill(launcher, signal.SIGCONT)
        with pytest.raises(RankError, match=r"host .*\(task 1\): its agent has gone"):
            job.results()
    assert not any(map(is_alive, pids.values()))


@pytest.mark.parametrize("count", [*(pytest.param(few, marks=pytest.mark.long) for few in (0, 1)), 2])
def test_a_job_that_the_scheduler_gives_up_ends(functions: Any, place: Place, count: int) -> None:
    with PlacedJob(2, functions.waits) as job:
        tasks = place(job, count)
        pids = Pids(Path()).wait(2) if count == 2 else {}
        job.abandon()
        with pytest.raises(LaunchError, match="the scheduler has ended its tasks"):
            job.results()
    assert not any(map(is_alive, pids.values()))
    if count == 2:
        assert said_by(tasks) == ["the task goes on\n"] * 2


def test_a_driver_that_stops_or_dies_leaves_no_rank(functions: Any, place: Place, tmp_path: Path) -> None:
    with PlacedJob(2, functions.waits) as job:
        tasks = place(job)
        pids = Pids(Path()).wait(2)
        job.stop()
        with pytest.raises(LaunchError, match="exit code 130"):
            job.results()
    assert said_by(tasks) == ["the task goes on\n"] * 2
    assert not any(map(is_alive, pids.values()))

    driver = textwrap.dedent("""
        import functions, os, signal
        from ringcore.launcher.external import PlacedJob
        job = PlacedJob(1, functions.waits)
        print(job.ticket(0).hex(), flush=True)
        print(job.call.hex(), flush=True)
        job.results()
    """)
    (tmp_path / "pid.0").unlink()
    (tmp_path / "pid.1").unlink()
    environ = {**clean_environ(), "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(2)]
        with subprocess.Popen([sys.executable, "-c", TASK, ""], stdin=subprocess.PIPE, text=True) as task:
            assert task.stdin is not None
            task.stdin.write("".join(told))
            task.stdin.close()
            pids = Pids(Path()).wait(1)
            os.kill(process.pid, signal.SIGKILL)
            assert task.wait(30) == 0
    eventually(lambda: not any(map(is_alive, pids.values())), "no rank is left", 30)


def test_a_second_attempt_is_refused(functions: Any, place: Place) -> None:
    with PlacedJob(2, functions.waits) as job:
        first = place(job)
        pids = Pids(Path()).wait(2)
        again = place(job)  # as a scheduler does that tries a task once more
        assert [task.wait(60) for task in again] == [0, 0]
        assert Pids(Path()).read() == pids
        assert all(task.poll() is None for task in first)


@pytest.mark.long  # it tries for ten seconds
def test_what_comes_too_late_is_refused(functions: Any) -> None:
    with PlacedJob(2, functions.waits) as job:
        ticket, call = job.ticket(0), job.call
    late = subprocess.run(
        [sys.executable, "-c", TASK, ""], input=f"{ticket.hex()}\n{call.hex()}\n", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "nobody answers at tcp:127.0.0.1" in late.stderr


class Meddler:
    """Stands between tasks and launcher, and adds a frame of its own to what the launcher says."""

    def __init__(self, job: PlacedJob, frame: bytes) -> None:
        told = json.loads(job.ticket(0))
        host, port = told["ticket"]["address"].removeprefix("tcp:").split(":")
        self._listener = socket.create_server(("127.0.0.1", 0))
        told["ticket"]["address"] = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        self.ticket = json.dumps(told).encode()
        self._far = socket.create_connection((host, int(port)))
        self._frame = frame
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        near, _ = self._listener.accept()
        other = threading.Thread(target=self._pass_on, args=(near, self._far, b""))
        other.start()
        self._pass_on(self._far, near, self._frame)
        other.join()
        near.close()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, more: bytes) -> None:
        count = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                count += len(data)
                target.sendall(data + (more if count > 200 else b""))  # The handshake is shorter.
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._thread.join()
        self._listener.close()
        self._far.close()


def test_what_is_changed_on_the_way_ends_the_job_and_runs_nothing(functions: Any, tmp_path: Path) -> None:
    evil = HostJob(
        ranks=(RankJob(0, {}),), argv=("touch", str(tmp_path / "evil")), cwd="/", environ={}, blobs={}
    ).to_json()
    with (
        PlacedJob(1, functions.waits) as job,
        contextlib.closing(Meddler(job, HEADER.pack(Kind.JOB, 0, len(evil)) + evil)) as meddler,
        subprocess.Popen([sys.executable, "-c", TASK, ""], stdin=subprocess.PIPE, text=True) as task,
    ):
        assert task.stdin is not None
        task.stdin.write(f"{meddler.ticket.hex()}\n{job.call.hex()}\n")
        task.stdin.close()
        with pytest.raises((LaunchError, RankError), match="its agent has gone"):
            job.results()
        assert task.wait(60) == 0
    assert not (tmp_path / "evil").exists()


def test_tasks_that_do_not_come_are_named(functions: Any, place: Place) -> None:
    with (
        PlacedJob(3, functions.waits, start_timeout_s=5) as job,
        start_task(job, 1),
        pytest.raises(LaunchError, match=r"host task 0, task 2 did not answer within 5 s"),
    ):
        job.results()


def test_wrong_arguments_are_refused_before_anything_starts(functions: Any) -> None:
    with pytest.raises(ValueError, match="at least one rank, not 0"):
        PlacedJob(0, functions.waits)
    with pytest.raises(TypeError, match=r"cannot be pickled because of argument 0"):
        PlacedJob(1, functions.total, (threading.Lock(),))
    with pytest.raises(LaunchError, match=r"cannot listen on 192\.0\.2\.77"):
        PlacedJob(1, functions.waits, host="192.0.2.77")
