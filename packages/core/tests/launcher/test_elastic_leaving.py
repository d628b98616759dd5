"""Ranks leave an elastic job in order, also while it recovers; and a job of which too few are left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from support.elastic import AT_ONCE, begun, engines, told, train
from support.processes import Pids, Ringrun, eventually

Script = Callable[..., str]


def test_a_rank_that_is_told_to_end_leaves_at_its_next_commit(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = train(script)
    with ringrun.started("-np", "4", "--min-np", "1", name) as process:
        first = begun(ringrun.directory, 4)
        os.kill(pids.read()["0.0"], signal.SIGTERM)
        three = begun(ringrun.directory, 4 + 3)[4:]
        os.kill(pids.read()["2.0"], signal.SIGTERM)
        os.kill(pids.read()["3.0"], signal.SIGTERM)
        eventually(lambda: told(ringrun.directory, "begin")[-1]["size"] == 1, "the last goes on")
        (ringrun.directory / "stop").touch()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0 and stderr == "", stderr
    assert {(line["place"], line["rank"], line["size"]) for line in three} == {(1, 0, 3), (2, 1, 3), (3, 2, 3)}
    assert engines(three) | engines(told(ringrun.directory, "end")) < engines(first), "nobody met anybody anew"
    assert not list(ringrun.directory.glob("life.*.1")), "nobody came in their places"


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (
            "signal.signal(signal.SIGTERM, lambda *_: None)",
            "own, or ignores it. Remedy: `ringcore drain JOB RANK`, or call init() before that handler is set",
        ),
        (
            """
import threading
thread = threading.Thread(target=ringcore.init)
thread.start()
thread.join()
""",
            "not called in the main thread. Remedy: `ringcore drain JOB RANK`, or call init() in the main thread",
        ),
    ],
    ids=["handler", "thread"],
)
def test_a_rank_that_sigterm_does_not_let_leave_says_so(ringrun: Ringrun, script: Script, first: str, why: str) -> None:
    done = ringrun("-np", "1", "--min-np", "1", train(script, first=first, goes_on="state.step < 2"))
    assert done.returncode == 0, done.stderr
    (line,) = told(ringrun.directory, "end")
    assert f"SIGTERM does not let process {line['pid']} leave its elastic job in order: " in done.stderr
    assert why in done.stderr


def test_ranks_that_leave_at_the_first_commit_are_not_lost(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = train(
        script,
        before="if rank < 2 and life == 0 and state.step == 0: os.kill(os.getpid(), signal.SIGTERM)",
        goes_on="state.step < 20",
    )
    done = ringrun("-np", "4", "--min-np", "1", name)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first, ended = told(ringrun.directory, "begin")[:4], told(ringrun.directory, "end")
    assert {(line["place"], line["rank"], line["size"]) for line in ended} == {(2, 0, 2), (3, 1, 2)}
    assert {(line["step"], line["total"]) for line in ended} == {(20, 4.0 + 19 * 2)}, "no step was lost"
    assert engines(ended) < engines(first), "nobody met anybody anew"
    assert not list(ringrun.directory.glob("life.*.1")), "nobody came in their places"


def test_a_rank_that_is_told_to_end_while_it_recovers_leaves_at_its_next_commit(
    ringrun: Ringrun, script: Script
) -> None:
    name = train(
        script,
        # Rank 2 is told as it goes back to the commit before it agrees with the others on anything.
        first="""
restore = elastic.ObjectState.restore
def restore_and_leave(state):
    restore(state)
    if (rank, life) == (2, 0): os.kill(os.getpid(), signal.SIGTERM)
elastic.ObjectState.restore = restore_and_leave
""",
        before="if (rank, life, state.step) == (1, 0, 5): os.kill(os.getpid(), signal.SIGKILL)",
        goes_on="state.step < 10 or ringcore.size() < 3",
    )
    done = ringrun("-np", "4", "--min-np", "2", *AT_ONCE, name)
    assert done.returncode == 0, done.stderr
    first, ended = told(ringrun.directory, "begin")[:4], told(ringrun.directory, "end")
    assert [line["size"] for line in ended] == [3] * 3
    stayed = engines([line for line in first if line["place"] in (0, 3)])
    assert len(stayed) == 2 and stayed < engines(ended), "those that stayed have kept their connections"
    assert len(list(ringrun.directory.glob("life.*"))) == 5, "nobody came in the place of the one that left"


def test_a_rank_that_is_told_to_end_while_too_few_are_there_ends_at_once(
    ringrun: Ringrun, script: Script, pids: Pids
) -> None:
    name = train(script, before="if (rank, state.step) == (1, 3): raise ValueError('the cause')")
    words = ["-np", "2", "--min-np", "2", "--blacklist-cooldown-range", "60", "60"]
    with ringrun.started(*words, name) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "waiting for rank 1" in line:
                break
        os.kill(pids.read()["0.0"], signal.SIGTERM)
        _, rest = process.communicate(timeout=30)
    assert process.returncode == 1, rest
    assert rest.splitlines()[-1] == "ValueError: the cause", [*lines, rest]


def test_a_plain_loop_does_not_go_on_with_too_few_ranks(ringrun: Ringrun, script: Script) -> None:
    name = script(
        """
        import numpy as np
        import ringcore

        ringcore.init()
        for step in range(1000):
            if rank == 1 and step == 3:
                raise ValueError("the cause")
            ringcore.allreduce(np.ones(5), op=ringcore.Sum)
            open(f"steps.{ringcore.size()}.{rank}.{step}", "w").close()
        """
    )
    # With one of them lost it goes on.
    done = ringrun("-np", "3", "--min-np", "2", "--elastic-timeout", "0.5", name)
    assert done.returncode == 0, done.stderr
    assert (ringrun.directory / "steps.2.0.999").exists()
    for path in ringrun.directory.glob("steps.*"):
        path.unlink()
    done = ringrun("-np", "3", "--min-np", "3", "--elastic-timeout", "0.5", name)
    assert done.returncode == 1
    assert "2 ranks are there, and at least 3 must be to go on" in done.stderr
    assert "nobody can join ranks outside of elastic.run, 0.5 s at most (--elastic-timeout)" in done.stderr
    assert done.stderr.splitlines()[-1] == "ValueError: the cause", done.stderr
    assert not list(ringrun.directory.glob("steps.2.*")), "no step is of too few"
