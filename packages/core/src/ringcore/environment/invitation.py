"""What a launcher tells a process that is to join ranks which train, and these ranks."""

from __future__ import annotations

from dataclasses import dataclass

from ringcore.environment.placement import Placement


@dataclass(frozen=True)
class Invitation:
    """The launcher lets a process meet the ranks.

    Attributes:
        epoch: Of these ranks, as dealt.
        size: So many they were when they met.
        least: So many ranks must be there to go on.
        evict_slow: How many times as long as the others a rank works that is to be replaced; None: none is.
        job_id: The job's name.
        place: What the process is called among the engines.
        members: And what the ranks are, in the order of their numbers in the meeting ...
        others: ... behind whom others are that have yet to be let in.
        hosts: By place, a number of the host that each is on ...
        slots: ... and which of its slots each has.
        meeting: The epoch of the rendezvous.
        began: That of the meeting in which the ranks have begun.
        limit_s: They are connected by then, or whoever joins comes again.
    """

    epoch: int
    size: int
    least: int
    evict_slow: float | None
    job_id: str
    place: int
    members: list[int]
    others: list[int]
    hosts: list[int]
    slots: list[int]
    meeting: int
    began: int
    limit_s: float

    @property
    def met(self) -> list[int]:
        """All whom the process meets, by their numbers in the meeting."""
        return [*self.members, *self.others]

    def placement(self, number: int) -> Placement:
        """In the meeting, where whoever joins is the last."""
        size = len(self.met) + 1
        return Placement(number, size, None, None, None, None, "ringrun", job_id=self.job_id, epoch=self.meeting)
