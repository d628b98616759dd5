"""A process joins the ranks of an elastic job over connections of its own, while they train: see job/joining.py.

One at a time.
"""

from __future__ import annotations

import dataclasses
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
        self.newcomer: RankProcess | None = None
        self.place = -1  # It is to have.
        self.due_by = 0.0  # It has to be connected with all ranks by then.
        self.has_met = False  # It is.

    def is_settled(self) -> bool:
        """Whether the ranks have met, and have gone on without those who have ended since."""
        return all(member.in_epoch and member.connected for member in self._witness.members)

    def is_possible(self, newcomer: RankProcess) -> bool:
        """Whether the ranks can be joined by this process."""
        witness = self._witness
        members = witness.members
        has_engines = witness.size > 1 and not any(member.ready for member in members)
        has_place = witness.places < witness.size + _native.PLACES_TO_COME
        return has_engines and has_place and newcomer.tries < _TRIES

    def guests(self) -> int:
        """How many meet at the rendezvous."""
        return len(self._witness.members) + 1

    def begin(self, newcomer: RankProcess, meeting: int, due_by: float) -> None:
        """Let it meet the ranks.

        Args:
            newcomer: The process.
            meeting: The epoch of the rendezvous.
            due_by: It has to be connected with all ranks by then, by `time.monotonic()`.
        """
        members = self._witness.members
        self.newcomer, self.due_by, self.has_met = newcomer, due_by, False
        newcomer.ready = False
        newcomer.tries += 1
        self.place = self._witness.add(newcomer)
        invitation = Invitation(
            epoch=self._witness.epoch,
            size=self._witness.size,
            least=self._asked.min_np,
            evict_slow=self._asked.evict_slow,
            job_id=self._job_id,
            place=self.place,
            members=[self._witness.place_of(member) for member in members],
            hosts=self._witness.hosts,
            slots=self._witness.slots,
            meeting=meeting,
        )
        told = dataclasses.asdict(invitation)
        self._say(newcomer, {"join": told})
        for member in members:
            self._say(member, {"joins": told})

    def forget(self, process: RankProcess) -> bool:
        """It has ended, or comes back, as it could not join.

        Returns:
            Whether it was to join.
        """
        if self.newcomer is not process:
            return False
        self.newcomer = None
        return True

    def take(self, members: Sequence[RankProcess], now: float) -> None:
        """The ranks are these now."""
        newcomer = self.newcomer
        if newcomer is None or newcomer not in members:
            return
        self.newcomer = None
        newcomer.in_epoch, newcomer.connected, newcomer.tries = True, True, 0
        newcomer.began_at = newcomer.began_at or now
        newcomer.place.stillborn = 0
