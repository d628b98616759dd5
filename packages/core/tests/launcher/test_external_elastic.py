"""Elastic jobs of tasks that a scheduler places and starts again: here plain processes stand for its workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ringcore.launcher.external import Elasticity, LaunchError, PlacedJob, RankError
from support.processes import Pids, clean_environ, eventually, is_alive

TASK = """
import sys
from ringcore.launcher.external import host_rank
ticket, call = (bytes.fromhex(sys.stdin.readline()) for _ in range(2))
host_rank(ticket, call)
"""
FUNCTIONS = """
import os, signal, sys, time
import numpy as np

def write_pid(name):
    with open(f"new.{name}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"new.{name}", f"pid.{name}")

def dies_once():
    try:
        os.close(os.open("died", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

def alike(flag):
    import ringcore as ring
    return ring.allreduce(np.array([flag]), op=ring.Min)[0]

def train(size, dies=None):
    '''Adds up ones, a commit a step, until so many ranks are there. Once rank `dies` is killed at the fifth step.'''
    import ringcore as ring
    from ringcore import elastic
    ring.init()
    engines = set()

    @elastic.run
    def steps(state):
        engines.add(ring.job.state.context().began)
        write_pid(os.getpid())
        while state.step < 10 or ring.size() < size or not alike(dies is not None or os.path.exists("stop")):
            if (ring.rank(), state.step) == (dies, 5):
                dies_once()
            state.total += float(ring.allreduce(np.ones(3), op=ring.Sum)[0])
            state.step += 1
            state.commit()
        return {"pid": os.getpid(), "rank": ring.rank(), "size": ring.size(), "engines": len(engines),
                "total": state.total, "step": state.step}

    return steps(elastic.ObjectState(step=0, total=0.0))

def plain():
    '''A loop without commits.'''
    import ringcore as ring
    ring.init()
    write_pid(os.getpid())
    while ring.allreduce(np.array([not os.path.exists("stop")]), op=ring.Min)[0]:
        if ring.size() == 2:
            open(f"both.{os.getpid()}", "w").close()
    return ring.size()

def fails(kind):
    import ringcore as ring
    ring.init()
    raise LookupError("no such row")

def fails_beside_another():
    '''The first waits for the third, which comes in the place of the second, and fails after it.'''
    for name in ("first", "second", "third"):
        try:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            continue
    if name == "second":
        raise LookupError("no such row")
    if name == "third":
        signal.pause()
    deadline = time.monotonic() + 60
    while not os.path.exists("third") and time.monotonic() < deadline:
        time.sleep(0.01)
    raise ValueError("too late to be the cause")
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import functions

    yield functions
    del sys.modules["functions"]


Start = Callable[[PlacedJob, int], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a task, as a scheduler does."""
    with contextlib.ExitStack() as stack:

        def begin(job: PlacedJob, index: int) -> subprocess.Popen[str]:
            task = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", TASK], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    env=clean_environ(),
                )
            )  # fmt: skip
            stack.callback(task.kill)
            assert task.stdin is not None
            task.stdin.write(f"{job.ticket(index).hex()}\n{job.call.hex()}\n")
            task.stdin.close()
            return task

        yield begin


def ended_well(tasks: list[subprocess.Popen[str]]) -> bool:
    return [task.wait(60) for task in tasks] == [0] * len(tasks)


def test_a_rank_that_is_killed_is_replaced_in_its_task_while_the_other_goes_on(functions: Any, start: Start) -> None:
    with PlacedJob(2, functions.train, (2, 1), elastic=Elasticity(1, 2)) as job:
        tasks = [start(job, index) for index in range(job.tasks)]
        results = job.results()
    assert [(found["rank"], found["size"]) for found in results] == [(0, 2), (1, 2)]
    assert len({(found["step"], found["total"]) for found in results}) == 1
    survivor, newcomer = results
    assert survivor["engines"] == 1, "who is left has kept its process and its connections"
    assert newcomer["total"] > 10, "it has the state of the other"
    assert len(Pids(Path()).read()) == 3
    assert ended_well(tasks)


def test_a_task_that_is_killed_is_replaced_by_another_attempt(functions: Any, start: Start) -> None:
    with PlacedJob(3, functions.train, (3,), elastic=Elasticity(1, 3)) as job:
        tasks = [start(job, index) for index in range(job.tasks)]
        first = Pids(Path()).wait(3)
        tasks[1].kill()
        again = start(job, 1)
        eventually(lambda: len(Pids(Path()).read()) > 3, "another one has joined")
        (Path() / "stop").touch()
        results = job.results()
    assert [(found["rank"], found["size"]) for found in results] == [(rank, 3) for rank in range(3)]
    assert len({(found["step"], found["total"]) for found in results}) == 1
    assert len({found["pid"] for found in results} & set(first.values())) == 2
    assert ended_well([tasks[0], tasks[2], again])
    eventually(lambda: not any(map(is_alive, Pids(Path()).read().values())), "no rank is left", 30)


def test_a_task_whose_agent_is_told_to_end_takes_no_other_rank(functions: Any, start: Start) -> None:
    with PlacedJob(2, functions.plain, (), elastic=Elasticity(1, 2)) as job:
        tasks = [start(job, index) for index in range(job.tasks)]
        eventually(lambda: len(list(Path().glob("both.*"))) == 2, "both have met")
        leaving = next(iter(Pids(Path()).read().values()))
        agent = int(Path(f"/proc/{leaving}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent, signal.SIGTERM)
        eventually(lambda: any(task.poll() is not None for task in tasks), "its task has ended", limit_s=60)
        Path("stop").touch()
        assert job.results() == [1]
    assert ended_well(tasks)


def test_who_comes_later_joins_and_too_late_ends(functions: Any, start: Start) -> None:
    with PlacedJob(2, functions.train, (3,), elastic=Elasticity(1, 4)) as job:
        tasks = [start(job, index) for index in range(2)]
        Pids(Path()).wait(2)
        tasks.append(start(job, 2))
        (Path() / "stop").touch()
        assert [found["size"] for found in job.results()] == [3, 3, 3]
    assert ended_well([*tasks, start(job, 3)])


def test_where_all_fail_alike_the_exception_is_the_error(functions: Any, start: Start) -> None:
    with PlacedJob(2, functions.fails, ("row",), elastic=Elasticity(1, 2)) as job:
        tasks = [start(job, index) for index in range(job.tasks)]
        with pytest.raises(RankError, match="raised LookupError: no such row") as caught:
            job.results()
    assert isinstance(caught.value.original, LookupError)
    assert ended_well(tasks)


def test_the_cause_is_told_though_another_process_has_begun_in_its_place(functions: Any, start: Start) -> None:
    elasticity = Elasticity(1, 2, cooldown_s=(0.01, 0.01))
    with PlacedJob(2, functions.fails_beside_another, elastic=elasticity) as job:
        tasks = [start(job, 0)]
        eventually(Path("first").exists, "the first has begun")
        tasks.append(start(job, 1))
        with pytest.raises(RankError, match="raised LookupError: no such row"):
            job.results()
    assert ended_well(tasks)


def test_too_few_for_too_long_are_the_error(functions: Any, start: Start) -> None:
    with (
        PlacedJob(2, functions.train, (2,), elastic=Elasticity(2, 2, timeout_s=1.0)) as job,
        pytest.raises(LaunchError, match="there were less than 2 ranks, too few to go on, for 1 s"),
    ):
        task = start(job, 0)
        job.results()
    assert ended_well([task])


def test_a_driver_that_stops_leaves_no_rank(functions: Any, start: Start) -> None:
    with PlacedJob(2, functions.train, (3,), elastic=Elasticity(1, 2)) as job:
        tasks = [start(job, index) for index in range(job.tasks)]
        pids = Pids(Path()).wait(2)
        job.stop()
        with pytest.raises(LaunchError, match="exit code 130"):
            job.results()
    assert ended_well(tasks)
    assert not any(map(is_alive, pids.values()))


def test_a_job_that_the_scheduler_gives_up_ends(functions: Any, start: Start) -> None:
    with PlacedJob(2, functions.train, (3,), elastic=Elasticity(1, 2)) as job:
        tasks = [start(job, index) for index in range(job.tasks)]
        pids = Pids(Path()).wait(2)
        job.abandon()
        with pytest.raises(LaunchError, match="the scheduler has ended its tasks"):
            job.results()
    assert ended_well(tasks)
    assert not any(map(is_alive, pids.values()))
