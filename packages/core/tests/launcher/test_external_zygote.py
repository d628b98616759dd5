"""A worker of a scheduler hosts one rank after the other: all but the first are forked from a process that is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ringcore.launcher.external import PlacedJob, RankError
from support.processes import Pids, clean_environ, eventually, is_alive

TASKS = """
import json, os, sys
from ringcore.launcher.external import host_rank
for line in sys.stdin:
    ticket, call, environ, folder = json.loads(line)
    os.chdir(folder)
    host_rank(bytes.fromhex(ticket), bytes.fromhex(call), environ)
    print("hosted", flush=True)
"""
FUNCTIONS = '''
import gc, io, os, random, signal, socket, sys
import numpy as np

def about():
    descriptors = len(os.listdir("/proc/self/fd"))
    import ringcore as ring
    ring.init()
    return {
        "main": sys.modules["__main__"].__spec__.name,
        "zygote": int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]),
        "threads": os.environ["OMP_NUM_THREADS"],
        "names": {name: os.environ.get(name) for name in ("OF_TASK", "OF_JOB")},
        "folder": os.getcwd(),
        "descriptors": descriptors,
        "leads": os.getsid(0) == os.getpid() == os.getpgid(0),
        "random": [random.random(), float(np.random.random())],
        "sum": float(ring.allreduce(np.ones(3), op=ring.Sum)[0]),
        "args": sys.argv[1:],
    }

def numpy_is():
    return np.__file__

def closing():
    """Numbers that some object closes at this process's end, whatever has them then: a library that is still there."""
    objects = [one for one in gc.get_objects() if isinstance(one, (socket.socket, io.FileIO))]
    return [one.fileno() for one in objects if not getattr(one, "closed", False) and one.fileno() > 2]

def waits():
    with open("new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("new", "pid.0")
    signal.pause()
'''
ZYGOTE = "ringcore.launcher.external.zygote"


class Worker:
    """A scheduler's worker, which lives on from task to task."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TASKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=clean_environ(),
        )  # fmt: skip

    def host(self, job: PlacedJob, environ: Mapping[str, str], folder: str = "/") -> None:
        assert self.process.stdin is not None
        line = [job.ticket(0).hex(), job.call.hex(), dict(environ), folder]
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def hosted(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "hosted\n"

    def result(
        self, fn: Any, environ: Mapping[str, str], env: Mapping[str, str] | None = None, folder: str = "/"
    ) -> Any:
        with PlacedJob(1, fn, env=env) as job:
            self.host(job, environ, folder)
            (result,) = job.results()
        self.hosted()
        return result


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    import functions

    yield functions
    del sys.modules["functions"]


@pytest.fixture
def worker() -> Iterator[Worker]:
    one = Worker()
    with one.process:
        yield one
        one.process.kill()


def test_a_forked_rank_is_what_a_new_process_would_be(functions: Any, worker: Worker, tmp_path: Path) -> None:
    first = worker.result(functions.about, {"OF_TASK": "1", "OMP_NUM_THREADS": "2"}, {"OF_JOB": "x"})
    forked = worker.result(functions.about, {"OMP_NUM_THREADS": "2"}, {"OF_JOB": "x"})
    assert [first.pop("names"), forked.pop("names")] == [{"OF_TASK": one, "OF_JOB": "x"} for one in ("1", None)]
    assert first["main"] == forked["main"] == ZYGOTE
    drawn = [*first.pop("random"), *forked.pop("random")]
    assert len(set(drawn)) == 4
    assert first == forked
    assert (forked["leads"], forked["sum"], forked["args"], forked["folder"]) == (True, 1.0, [], "/")

    # numpy has its threads already.
    fresh = worker.result(functions.about, {"OMP_NUM_THREADS": "1"}, {"OF_JOB": "x"})
    assert (fresh["main"], fresh["threads"], fresh["zygote"]) == ("ringcore.launcher.worker", "1", first["zygote"])
    assert fresh["descriptors"] == forked["descriptors"]

    # What an interpreter looks at when it starts: another environment, another folder.
    other = worker.result(functions.about, {"OMP_NUM_THREADS": "2"}, {"OF_JOB": "y"})
    there = worker.result(functions.about, {"OMP_NUM_THREADS": "2"}, {"OF_JOB": "y"}, str(tmp_path))
    assert [one["names"]["OF_JOB"] for one in (other, there)] == ["y", "y"]
    assert (other["folder"], there["folder"]) == ("/", str(tmp_path))
    assert len({one["zygote"] for one in (first, other, there)}) == 3
    eventually(lambda: not any(is_alive(one["zygote"]) for one in (first, other)), "those are kept that are used", 30)


def test_a_forked_rank_closes_nothing_of_the_function_at_its_end(functions: Any, worker: Worker) -> None:
    assert worker.result(functions.closing, {}) == []


def test_a_driver_with_another_numpy_has_it_in_its_ranks(
    functions: Any, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.result(functions.about, {})
    usual = worker.result(functions.numpy_is, {})
    (tmp_path / "more" / "numpy").mkdir(parents=True)
    other = tmp_path / "more" / "numpy" / "__init__.py"
    other.write_text("")
    monkeypatch.syspath_prepend(tmp_path / "more")
    assert worker.result(functions.numpy_is, {}) == str(other) != usual


def test_a_zygote_that_was_killed_is_replaced_and_dies_with_its_worker(functions: Any, worker: Worker) -> None:
    first = worker.result(functions.about, {})["zygote"]
    os.kill(first, signal.SIGKILL)
    second = worker.result(functions.about, {})["zygote"]
    assert second != first
    worker.process.kill()
    eventually(lambda: not is_alive(second), "the zygote is gone", 30)


def test_a_zygote_that_is_killed_in_a_job_is_the_error_and_leaves_no_rank(
    functions: Any, worker: Worker, tmp_path: Path
) -> None:
    zygote = worker.result(functions.about, {}, folder=str(tmp_path))["zygote"]
    with PlacedJob(1, functions.waits) as job:
        worker.host(job, {}, str(tmp_path))
        pids = Pids(tmp_path).wait(1)
        os.kill(zygote, signal.SIGKILL)
        with pytest.raises(RankError, match="its agent has gone"):
            job.results()
    worker.hosted()
    eventually(lambda: not any(map(is_alive, pids.values())), "no rank is left", 30)
    assert worker.result(functions.about, {}, folder=str(tmp_path))["sum"] == 1.0
