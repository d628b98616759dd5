"""Whom the launcher of an elastic job lets join the ranks: who could not join so often is met by all anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ringcore.environment.invitation import Invitation
from ringcore.launcher._hosts import Host
from ringcore.launcher.elastic.joining import Joining
from ringcore.launcher.elastic.places import Places, RankProcess
from ringcore.launcher.elastic.ranks import Ranks
from ringcore.launcher.elastic.witness import Witness


class Job(Ranks):
    """Two ranks, and two processes that come."""

    def __init__(self) -> None:
        places = Places(1.0, 60.0, 2, None)
        places.offer([Host("a", 4)])
        for place in places.vacant():
            place.process = RankProcess(place)
        self.ranks, self.newcomers = places.processes()[:2], places.processes()[2:]
        self._server: Any = SimpleNamespace(announce=lambda *_: None)
        self.said: list[tuple[RankProcess, dict[str, Any]]] = []
        asked: Any = SimpleNamespace(min_np=2, evict_slow=None)
        self.joining = self._joining = Joining(
            Witness(1, self.ranks, lambda *_: None), "job", asked, lambda *said: self.said.append(said)
        )

    def comes_in_vain(self, process: RankProcess, *, by: RankProcess) -> None:
        """It is to meet all, and does not, as somebody has ended or comes back."""
        self.joining.begin(process, 2, 10.0)
        self.joining.forget(by)
        self._end_meeting()
        self.joining.forget(process)


def test_all_have_as_long_to_be_connected_as_the_launcher_waits() -> None:
    job = Job()
    job.joining.begin(job.newcomers[0], 2, 10.0)
    told = [(process, said.get("join") or said["joins"]) for process, said in job.said]
    assert [process for process, _ in told] == [job.newcomers[0], *job.ranks]
    assert [Invitation(**said).limit_s for _, said in told] == [10.0] * 3


def test_who_could_not_join_three_times_is_met_by_all_anew() -> None:
    job = Job()
    for _ in range(3):
        assert job.joining.is_possible(job.newcomers[0])
        job.comes_in_vain(job.newcomers[0], by=job.newcomers[0])
    assert not job.joining.is_possible(job.newcomers[0])


def test_who_could_not_as_others_have_ended_may_try_again() -> None:
    job = Job()
    for by in (job.ranks[1], job.newcomers[1], job.newcomers[1]):
        job.comes_in_vain(job.newcomers[0], by=by)
    assert job.joining.is_possible(job.newcomers[0])
