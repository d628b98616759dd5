"""The launcher's vote on who goes on in an elastic job: for the ranks of one meeting.

These agree among themselves, see native/engine/view_change.hpp. The launcher sees processes end, which is proof, and
its vote keeps two parts of a job that cannot reach each other from both going on.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any

from ringcore import _native
from ringcore._errors import RingcoreError
from ringcore.launcher.elastic.places import RankProcess


class Witness:
    """Votes, and knows who goes on.

    Args:
        epoch: In which they have met.
        processes: By rank.
        tell: Says something to a process.
    """

    def __init__(
        self, epoch: int, processes: Sequence[RankProcess], tell: Callable[[RankProcess, dict[str, Any]], None]
    ) -> None:
        self.began = self.epoch = epoch
        self.size = len(processes)  # As they met.
        self._processes = list(processes)
        self._tell = tell
        self._vote = _native.Witness(epoch, len(processes))

    @property
    def places(self) -> int:
        """How many have been given away, to ranks and to those who were to join them."""
        return len(self._processes)

    @property
    def hosts(self) -> list[int]:
        """By place, a number of the host that each is on."""
        names = [process.place.host.name for process in self._processes]
        return [names.index(name) for name in names]

    @property
    def slots(self) -> list[int]:
        """By place, which slot of its host each has."""
        return [process.place.index for process in self._processes]

    def add(self, process: RankProcess) -> int:
        """A process is to join the ranks; returns its place."""
        self._processes.append(process)
        return len(self._processes) - 1

    def place_of(self, process: RankProcess) -> int:
        """The last one that a process was given."""
        return len(self._processes) - 1 - self._processes[::-1].index(process)

    @property
    def members(self) -> list[RankProcess]:
        """Those who go on, by rank, as far as it is known here."""
        _, members = self._vote.view
        return [self._processes[member] for member in members]

    def hear(self, process: RankProcess, said: dict[str, Any]) -> bool:
        """A rank asks for the vote, or tells who goes on.

        Returns:
            Whether those who go on are others now.
        """
        if said.get("epoch") != self.epoch or process not in self._processes:
            return False  # It was of an epoch before.
        before, _ = self._vote.view
        try:
            answer = self._vote.receive(base64.b64decode(str(said["view"]), validate=True))
        except (binascii.Error, RingcoreError):  # No word of ringcore's.
            return False
        if answer is not None:
            self._send(process, answer)
        now, _ = self._vote.view
        return now != before

    def prove_ended(self, process: RankProcess, *, in_order: bool = False) -> None:
        """A process has been seen to end, which the others may not see.

        Args:
            process: Of a rank, or another one.
            in_order: Nobody need go on without it, before they miss it.
        """
        if process not in self._processes:
            return
        self._vote.prove_ended(self.place_of(process))
        members = self.members
        if process in members and (not in_order or self._vote.asked):
            for member in members:
                if member.place.process is member:
                    self._send(member, self._vote.proofs)

    def may_go_on(self, process: RankProcess) -> bool:
        """Whether it may be a rank still, and its process not have ended."""
        return process in self.members and self.place_of(process) not in self._vote.ended

    def _send(self, process: RankProcess, message: bytes) -> None:
        self._tell(process, {"view": base64.b64encode(message).decode(), "epoch": self.epoch})
