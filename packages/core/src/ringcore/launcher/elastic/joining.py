"""Processes join the ranks of an elastic job over connections of their own, while these train: see job/joining.py.

They meet the ranks, and those who have yet to be let in, one after the other. Whoever has met them keeps no other one
from joining: it may have to read data first.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from ringcore import _native
from ringcore.environment.invitation import Invitation
from ringcore.launcher._options import Elastic
from ringcore.launcher.elastic.places import RankProcess
from ringcore.launcher.elastic.witness import Witness

# Whoever could not be let in so often is one reason more for all to meet anew.
_TRIES = 3


class Joining:
    """Those who are to join the ranks of one meeting.

    Args:
        witness: Of these ranks.
        job_id: The job's name.
        asked: What the ranks are told of how they may come and go.
        say: Says something to a process.
    """

    def __init__(
        self, witness: Witness, job_id: str, asked: Elastic, say: Callable[[RankProcess, dict[str, Any]], None]
    ) -> None:
        self._witness = witness
        self._job_id = job_id
        self._asked = asked
        self._say = say
        self.meets: RankProcess | None = None  # Who is to be connected with all.
        self.due_by = 0.0  # It has to be by then.
        self._have_met: list[RankProcess] = []  # Who are, and wait to be let in.

    def is_settled(self) -> bool:
        """Whether the ranks have met, and have gone on without those who have ended since."""
        return all(member.in_epoch and member.connected for member in self._witness.members)

    def is_possible(self, newcomer: RankProcess) -> bool:
        """Whether the ranks can be joined by this process."""
        witness = self._witness
        members = witness.members
        has_engines = witness.size > 1 and not any(member.ready for member in members)
        has_place = witness.places < witness.size + _native.PLACES_TO_COME
        return has_engines and has_place and newcomer.tries - newcomer.disturbed < _TRIES

    @property
    def waiting(self) -> int:
        """How many have met all, and wait to be let in."""
        return len(self._have_met)

    def guests(self) -> int:
        """How many meet at the rendezvous."""
        return len(self._witness.members) + len(self._have_met) + 1

    def begin(self, newcomer: RankProcess, meeting: int, limit_s: float) -> None:
        """Let it meet the ranks, and the others that join.

        Args:
            newcomer: The process.
            meeting: The epoch of the rendezvous.
            limit_s: It has to be connected with all by then.
        """
        members = self._witness.members
        self.meets, self.due_by = newcomer, time.monotonic() + limit_s
        newcomer.ready = False
        newcomer.tries += 1
        place = self._witness.add(newcomer)
        invitation = Invitation(
            epoch=self._witness.epoch,
            size=self._witness.size,
            least=self._asked.min_np,
            evict_slow=self._asked.evict_slow,
            job_id=self._job_id,
            place=place,
            members=[self._witness.place_of(member) for member in members],
            others=[self._witness.place_of(other) for other in self._have_met],
            hosts=self._witness.hosts,
            slots=self._witness.slots,
            meeting=meeting,
            began=self._witness.began,
            limit_s=limit_s,
        )
        told = dataclasses.asdict(invitation)
        self._say(newcomer, {"join": told})
        for process in [*members, *self._have_met]:
            self._say(process, {"joins": told})

    def at(self, place: int) -> RankProcess | None:
        """Who is to join at a place."""
        joining = [*self._have_met, *([self.meets] if self.meets is not None else [])]
        return next((process for process in joining if self._witness.place_of(process) == place), None)

    def note_met(self, process: RankProcess) -> None:
        """It is connected with all."""
        if process is self.meets:
            self.meets = None
            self._have_met.append(process)

    def forget(self, process: RankProcess) -> bool:
        """It has ended, or comes back, as it could not join.

        Returns:
            Whether it was to join.
        """
        if process is self.meets:
            self.meets = None
        elif process in self._have_met:
            self._have_met.remove(process)
        else:
            return False
        return True

    def disturb(self) -> None:
        """Whom the one that meets all is to meet has ended, or is not to join any more."""
        if self.meets is not None:
            self.meets.disturbed += 1

    def take(self, members: Sequence[RankProcess], now: float) -> None:
        """The ranks are these now."""
        for process in members:
            is_late = not process.in_epoch and process.place.process is process  # It had been given up.
            if self.forget(process) or is_late:
                process.in_epoch, process.connected, process.tries, process.disturbed = True, True, 0, 0
                process.began_at = process.began_at or now
                process.place.stillborn = 0
