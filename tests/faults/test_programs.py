"""Whole programs: ringcore.run, Ctrl-C, threads with process sets and join."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.rank import await_mark, caught, mark

# What differs between transports is the engine's own, whose tests have all of them.
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])

_MODULE = """
import numpy as np
import ringcore

def total(values):
    ringcore.init()
    return ringcore.allreduce(np.array(values) * (ringcore.rank() + 1), op=ringcore.Sum)

def fails_on_the_last(values):
    ringcore.init()
    if ringcore.rank() == ringcore.size() - 1:
        raise LookupError("no such data on purpose")
    return ringcore.allreduce(np.array(values))
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "functions_for_run.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import functions_for_run

    yield functions_for_run
    del sys.modules["functions_for_run"]


def test_run_returns_what_each_rank_returned(functions) -> None:
    results = ringcore.run(functions.total, ([1.0, 2.0],), np=3)
    assert [result.tolist() for result in results] == [[6.0, 12.0]] * 3


def test_run_raises_the_first_cause_and_not_its_consequences(functions) -> None:
    error = caught(ringcore.run, functions.fails_on_the_last, ([1.0],), np=3)
    assert error["type"] == "RankError"
    assert "rank 2 raised LookupError: no such data on purpose" in error["message"]
    assert "functions_for_run.py" in error["message"]


def is_interrupted() -> dict:
    ringcore.init()
    tensor = np.ones(3, np.float32)
    ringcore.allreduce(tensor, name="imports what it needs")
    interrupted, refused = False, None
    call = ringcore.allreduce_ if "IN_PLACE" in os.environ else ringcore.allreduce

    def mark_when_inside() -> None:
        main = threading.main_thread().ident
        folder = str(Path(ringcore.__file__).parent)
        before = None
        while True:  # until it stands in the function of ringcore that calls the engine
            frame = sys._current_frames()[main]
            place = frame.f_code, frame.f_lasti
            if place == before and frame.f_code.co_filename.startswith(folder):
                break
            before = place
            time.sleep(0.001)
        mark("waiting")

    if ringcore.rank() == 1:
        await_mark("interrupted", 0)
        # The interrupted rank has contributed: nobody else is harmed.
        call(tensor, name="waits")
        mark("answered")
    else:
        try:
            threading.Thread(target=mark_when_inside).start()
            call(tensor, name="waits")
        except KeyboardInterrupt:
            interrupted = True
            # A notebook's cell that is run again, before the other rank has made its first call.
            refused = caught(call, tensor, name="waits").get("type")
            mark("interrupted")
        await_mark("answered", 1)
    again = float(ringcore.allreduce(np.ones(3, np.float32), op=ringcore.Sum, name="waits")[0])
    after = float(ringcore.allreduce(np.ones(3, np.float32), op=ringcore.Sum, name="after")[0])
    return {"interrupted": interrupted, "refused": refused, "again": again, "after": after}


@pytest.mark.parametrize("env", [{}, {"IN_PLACE": "1"}], ids=["", "in place"])
def test_ctrl_c_ends_a_wait_and_the_job_goes_on(tmp_path: Path, env: dict[str, str]) -> None:
    with ranks.started(is_interrupted, 2, tmp_path, env=env) as job:
        job.await_mark("waiting", 0)
        job.signal(0, signal.SIGINT)
        outcomes = job.wait()
    after = {"again": 2.0, "after": 2.0}
    assert outcomes[0].result == {"interrupted": True, "refused": "DuplicateNameError", **after}, outcomes
    assert outcomes[1].result == {"interrupted": False, "refused": None, **after}, outcomes


def threads_with_process_sets() -> list:
    ringcore.init()
    me, size = ringcore.rank(), ringcore.size()
    sets = [ringcore.global_process_set]
    sets += [ringcore.add_process_set([rank, (rank + 1) % size]) for rank in range(size)]
    wrong: list = []

    def work(number: int) -> None:
        process_set = sets[number]
        if not process_set.included():
            return
        expected = sum(2.0**rank for rank in process_set.ranks)
        for step in range(60):
            tensor = np.full(1 + 500 * (step % 5), 2.0**me)
            result = ringcore.allreduce(tensor, op=ringcore.Sum, process_set=process_set, name=f"{number}.{step % 20}")
            if not (result == expected).all():
                wrong.append([number, step, result[:3].tolist()])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(sets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Then ranks join at different times, while sets without the joined ones go on.
    pair = sets[1]  # ranks 0 and 1
    if me < 2:
        for step in range(20):
            result = ringcore.allreduce(np.full(10, 2.0**me), op=ringcore.Sum, process_set=pair, name=f"pair.{step}")
            if not (result == 3.0).all():
                wrong.append(["pair", step, result[:3].tolist()])
    last = ringcore.join()
    return [wrong, last in (0, 1, 2)]


@TRANSPORTS
def test_threads_process_sets_and_join_together(tmp_path: Path, transport: str) -> None:
    env = {"RINGCORE_TRANSPORT": transport, "RINGCORE_TIMEOUT_S": "40"}
    assert ranks.run(threads_with_process_sets, 3, tmp_path, env=env) == [[[], True]] * 3


def operations_without_a_name() -> list[float]:
    ringcore.init()
    pair = ringcore.add_process_set([0, 1])
    ones = np.ones(3)
    results = []
    for _ in range(3 if pair.included() else 0):
        results.append(ringcore.allreduce(ones, op=ringcore.Sum, process_set=pair)[0])
        results.append(len(ringcore.allgather_object(None, process_set=pair)))
    results.append(ringcore.allreduce(ones, op=ringcore.Sum)[0])
    results.append(len(ringcore.allgather_object(None)))
    return [float(result) for result in results]


def test_unnamed_operations_of_a_process_set_do_not_count_for_the_world(tmp_path: Path) -> None:
    members, others = [2.0, 2.0] * 3 + [3.0, 3.0], [3.0, 3.0]
    env = {"RINGCORE_TIMEOUT_S": "10"}
    assert ranks.run(operations_without_a_name, 3, tmp_path, env=env) == [members, members, others]


def process_sets_that_come_and_go() -> dict:
    from ringcore.job.state import context

    ringcore.init()
    size = ringcore.size()
    wrong = []
    for turn in range(40):
        # The members of one number differ, and so do the unnamed operations that they have counted.
        process_set = ringcore.add_process_set([turn % size] if turn % 3 == 0 else list(range(turn % 3, size)))
        for _ in range(turn % 4):
            if process_set.included():
                result = ringcore.allreduce(np.ones(2), op=ringcore.Sum, process_set=process_set)
                wrong += [turn] if (result != process_set.size()).any() else []
        ringcore.remove_process_set(process_set)
    return {"wrong": wrong, "counted": sorted({number for _, number in context().counters} - {0, None})}


def test_process_sets_come_and_go_and_leave_nothing_behind(tmp_path: Path) -> None:
    results = ranks.run(process_sets_that_come_and_go, 3, tmp_path)
    assert results == [{"wrong": [], "counted": []}] * 3
