"""Who is there in an elastic job, and what they are told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ringcore.launcher._options import Elastic
from ringcore.launcher._summary import list_ranks
from ringcore.launcher._supervisor import Supervisor
from ringcore.launcher.elastic.discovery import Discovery
from ringcore.launcher.elastic.joining import Joining
from ringcore.launcher.elastic.places import Place, Places, RankProcess
from ringcore.launcher.elastic.witness import Witness

if TYPE_CHECKING:
    from ringcore.bootstrap import RendezvousServer

# A rank that was lost for another reason than its end ends, or comes to meet the others, by then.
FENCE_S = 5.0


class Ranks(Supervisor):
    """What is known of the ranks, and of those that may become some."""

    _asked: Elastic
    _places: Places
    _server: RendezvousServer | None = None
    _joining: Joining | None = None  # With the witness.
    _witness: Witness | None = None  # Of the ranks that have met; None: their engines end with the first that is lost.
    _bind = ""
    _discovery: Discovery | None = None
    _master_port = 0
    _epoch = 0
    _members: list[RankProcess]  # As they met, or went on, last.
    _changes = 0  # Of who they are; the first meeting is none.
    _last_change = ""  # In words.
    _needed = 0  # Ranks for the next epoch.
    _began = False  # There was an epoch.
    _impatient = False  # Who has not come by now is not waited for.
    _finishing = False  # A rank has done its work.
    _heralded: set[str]  # To the ranks of this epoch.
    _cut_off: list[RankProcess]  # Their hosts were lost: they may still run.

    def _review(self) -> None:
        """After whatever has happened: start, tell, deal and wait as things are now."""
        raise NotImplementedError

    def _is_over(self) -> bool:
        """Whether nobody is left, and nobody is to come: without a rank there is no state to go on with."""
        if self._places.processes():
            return False
        if self._failures and not self._finishing:
            return not self._may_start_anew()
        return self._finishing or (bool(self._places.all) and not self._places.vacant())

    def _may_start_anew(self) -> bool:
        limit = self._asked.reset_limit
        return limit is not None and self._changes < limit and all(p.stillborn <= limit for p in self._places.all)

    def _may_change(self) -> bool:
        """Whether the ranks may be others once more: the change beyond --reset-limit ends the job."""
        limit = self._asked.reset_limit
        return limit is None or self._changes < limit

    def _is_spent(self) -> bool:
        """Whether the ranks have become others more often than they may."""
        limit = self._asked.reset_limit
        return limit is not None and self._changes > limit

    def _count_change(self, members: list[RankProcess]) -> None:
        """The ranks are these from now on."""
        self._changes += 1
        lost = [process.place for process in self._members if process not in members]
        new = [process.place for process in members if process not in self._members]
        parts = [f"the loss of {_name(lost)}"] if lost else []
        parts += [f"the coming of {_name(new)}"] if new else []
        self._last_change = " and ".join(parts) or "that all met anew"
        self._members = members

    def _say(self, process: RankProcess, message: dict[str, Any]) -> None:
        number = process.place.number
        self._hosts[number].tell(number, json.dumps(message).encode() + b"\n")

    def _tell_ranks(self, what: str) -> None:
        if what not in self._heralded:
            self._heralded.add(what)
            for process in self._places.processes():
                if process.in_epoch:
                    self._say(process, {what: True})

    def _end_meeting(self) -> None:
        """Whoever waits for a process at the rendezvous waits no more: the next epoch is that of nobody."""
        if self._joining is not None:
            self._joining.disturb()
        if self._server is not None:
            self._epoch += 1
            self._server.announce(self._epoch, 0)

    def _are_enough(self) -> bool:
        return sum(process.in_epoch for process in self._places.processes()) >= self._least()

    def _least(self) -> int:
        return 1 if self._finishing else self._needed


def _name(places: list[Place]) -> str:
    hosts = ", ".join(dict.fromkeys(place.host.name for place in places))
    return f"{list_ranks(sorted(place.number for place in places))} on {hosts}"
