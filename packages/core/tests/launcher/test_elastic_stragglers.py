"""`ringrun --evict-slow`: a rank that is slower than the others is named and replaced, and the job goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from ringcore.launcher._hosts import Host
from ringcore.launcher.elastic.places import Places, RankProcess
from ringcore.launcher.elastic.replacing import Replacing
from support.elastic import begun, engines, told, train
from support.processes import Ringrun

Script = Callable[..., str]
_SLOW = {"own_s": 3.0, "others_s": 1.0, "steps": 20}
# Rank 1 has ten times as much to do as the others, as long as it is its first process. Windows are of few seconds here.
_WORK = """
from ringcore.elastic import stragglers
stragglers._SECONDS = 1.0
def work():
    for _ in range(100 if (rank, life) == (1, 0) else 10): sum(range(20_000))
"""


class Job(Replacing):
    """Keeps what is said, and to whom, instead of saying it."""

    def __init__(self, ranks: int, least: int, evict_slow: float | None = 2.0) -> None:
        self.told: list[str] = []
        self.drained: list[int] = []
        self._asked: Any = SimpleNamespace(evict_slow=evict_slow, min_np=least, cooldown_s=(1.0, 60.0))
        self._output: Any = SimpleNamespace(say=self.told.append)
        self._places = Places(1.0, 60.0, least, None)
        self._places.offer([Host("a", ranks)])
        self._stopping = False
        for place in self._places.vacant():
            place.process = RankProcess(place, in_epoch=True, began_at=1.0)

    def process(self, number: int) -> RankProcess:
        process = self._places.all[number].process
        assert process is not None
        return process

    def _say(self, process: RankProcess, message: Mapping[str, Any]) -> None:
        if message.get("drain"):
            self.drained.append(process.place.number)

    def hears(self, number: int, said: object = _SLOW) -> None:
        self._on_slow(self.process(number), said)


def test_a_straggler_is_named_and_told_to_leave_and_its_place_rests() -> None:
    job = Job(3, 2)
    job.hears(1)
    assert job.drained == [1]
    (line,) = job.told
    assert line == (
        "ringrun: rank 1 on a is slow: between two commits it works for 3 s, and others for 1 s, 3.0 times as long, in "
        "most of 20 steps: it leaves at its next commit, and is started again in 1 s (--evict-slow)"
    )
    assert not job._places.all[1].retired and job._places.all[1].due_at > time.monotonic()


def test_a_spare_that_is_ready_takes_its_place() -> None:
    job = Job(4, 2)
    spare = job.process(3)
    spare.in_epoch, spare.ready = False, True
    job.hears(1)
    assert job.drained == [1] and "a spare takes its place" in job.told[0]


def test_never_two_within_the_longest_rest_of_a_place() -> None:
    job = Job(4, 1)
    job.hears(1)
    job.hears(2)
    assert job.drained == [1] and len(job.told) == 1
    job._next_eviction_at = time.monotonic()
    job.hears(2)
    assert job.drained == [1, 2]


def test_never_fewer_than_min_np_are_left() -> None:
    job = Job(2, 2)
    job.hears(1)
    job.hears(1)
    assert job.drained == []
    assert len(job.told) == 1 and job.told[0].endswith("; it stays, as fewer ranks than --min-np 2 would")


@pytest.mark.parametrize("of", ["leaves", "dismissed", "is_none"])
def test_who_leaves_already_is_left_alone(of: str) -> None:
    job = Job(3, 1)
    if of == "is_none":
        job.process(1).in_epoch = False
    else:
        setattr(job.process(1), of, True)
    job.hears(1)
    assert job.drained == [] and job.told == []


@pytest.mark.parametrize(
    "said", [1, None, {"own_s": 1}, {**_SLOW, "more": 1}, {**_SLOW, "own_s": "x"}, {**_SLOW, "steps": 1.5}]
)
def test_what_is_no_word_of_a_rank_is_none(said: object) -> None:
    job = Job(3, 1)
    job.hears(1, said)
    assert job.drained == [] and job.told == []


@pytest.mark.parametrize("spares", [[], ["--max-np", "3", "--spares", "1"]])
def test_a_slow_rank_is_replaced_and_no_step_is_lost(ringrun: Ringrun, script: Script, spares: list[str]) -> None:
    name = train(script, first=_WORK, before="work()")
    heir = (3, 0) if spares else (2, 1)  # Its expected rank, and which process of that number it is.
    with ringrun.started("-np", "3", "--min-np", "2", *spares, "--evict-slow", "3", name) as process:
        begun(ringrun.directory, 3 + 2 + 3)
        (ringrun.directory / "stop").touch()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "ringrun: rank 1 on localhost is slow: between two commits it works for " in stderr
    assert ("a spare takes its place" if spares else "is started again in 1 s") in stderr
    assert stderr.count("is slow") == 1, stderr
    assert (ringrun.directory / f"life.{heir[0]}.{heir[1]}").exists()
    first, ended = told(ringrun.directory, "begin"), told(ringrun.directory, "end")
    two, three = [line for line in first if line["size"] == 2], first[-3:]
    assert {line["place"] for line in two} == {0, 2}
    assert {line["place"] for line in three} == {line["place"] for line in ended} == {0, 2, heir[0]}
    assert engines(two) < engines(ended), "nobody met anybody anew"
    left, came, end = two[0]["step"], three[0]["step"], ended[0]["step"]
    total = 3.0 * left + 2.0 * (came - left) + 3.0 * (end - came)
    assert {(line["step"], line["total"]) for line in ended} == {(end, total)}


def test_a_slow_rank_stays_where_too_few_would(ringrun: Ringrun, script: Script) -> None:
    name = train(script, first=_WORK, before="work()")
    with ringrun.started("-np", "2", "--min-np", "2", "--evict-slow", "3", name) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "is slow" in line)
        (ringrun.directory / "stop").touch()
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    assert line.rstrip().endswith("; it stays, as fewer ranks than --min-np 2 would")
    assert [line["total"] - 2.0 * line["step"] for line in told(ringrun.directory, "end")] == [0.0] * 2


def test_nobody_is_looked_at_unless_that_is_asked_for(ringrun: Ringrun, script: Script) -> None:
    looks = "if state._stragglers is not None: raise AssertionError(state._stragglers)"
    done = ringrun("-np", "2", "--min-np", "1", train(script, before=looks, goes_on="state.step < 20"))
    assert done.returncode == 0 and done.stderr == "", done.stderr
