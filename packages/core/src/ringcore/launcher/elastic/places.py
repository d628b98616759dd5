"""Where the ranks of an elastic job can run, what became of them there, and how ranks are dealt out to who is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from ringcore.launcher._hosts import Host, Slot


@dataclasses.dataclass(eq=False)
class Place:
    """A slot of a host, in which one process after another may run.

    Attributes:
        number: Of this place; its output goes by it. Those that a job begins with are its first ranks.
        host: The host.
        index: Which of the host's slots.
        offered: The hosts that are known now have it.
        retired: Its process has left for good.
        failures: How often one after the other a process has failed here ...
        stillborn: ... and that before it became a rank.
        due_at: When the next process may be started, by `time.monotonic()`.
        process: What runs here.
    """

    number: int
    host: Host
    index: int
    offered: bool = True
    retired: bool = False
    failures: int = 0
    stillborn: int = 0
    due_at: float = 0.0
    process: RankProcess | None = None

    @property
    def usable(self) -> bool:
        """Whether a process here may be, or stay, a rank."""
        return self.offered and not self.retired


@dataclasses.dataclass(eq=False)
class RankProcess:
    """A process that is a rank, or may become one.

    Attributes:
        place: Where it runs.
        due_by: It should be ready by then, and those that are before it wait for it.
        began_at: When it became a rank for the first time; None: it never was one.
        rank: In the present epoch, or in the last one that it was in.
        epoch: The last one that it was in.
        in_epoch: It is a rank of the present epoch.
        connected: It has met the others of that epoch.
        ready: It waits for the next epoch.
        stranded: Too few ranks are left to go on, and it is where nobody can join it.
        intact: It comes with the state of a commit that all have made.
        apart: It has left the ranks of its epoch in order, whatever it still does.
        fenced: It was killed, as the others had lost it.
        drained: Somebody has ordered that it leaves for good.
        leaves: It has said that it ends for good.
        dismissed: It was told to, as there is no place for it any more.
        tries: How often it was to join ranks that train ...
        disturbed: ... and how often another one was to blame that it did not.
    """

    place: Place
    due_by: float = 0.0
    began_at: float | None = None
    rank: int = -1
    epoch: int = 0
    in_epoch: bool = False
    connected: bool = False
    ready: bool = False
    stranded: bool = False
    intact: bool = False
    apart: bool = False
    fenced: bool = False
    drained: bool = False
    leaves: bool = False
    dismissed: bool = False
    tries: int = 0
    disturbed: int = 0


class Places:
    """All places of a job.

    Args:
        cooldown_s: A place rests for so long after a failure, twice as long after each further one ...
        longest_cooldown_s: ... and for so long at most; a process that was a rank for so long wipes the slate clean.
        least: So many processes stay, wherever they are.
        most: There are so many ranks at most; None: as many as places.
        spares: So many processes more may be there.
    """

    def __init__(
        self, cooldown_s: float, longest_cooldown_s: float, least: int, most: int | None, spares: int = 0
    ) -> None:
        self._cooldown_s = cooldown_s
        self._longest_s = longest_cooldown_s
        self._least = least
        self.most = most
        self._spares = spares
        self.all: list[Place] = []

    def offer(self, hosts: Sequence[Host]) -> list[Place]:
        """These are the hosts now, and no others.

        Returns:
            The places that are new.
        """
        known = {(place.host.name, place.index): place for place in self.all}
        for place in self.all:
            place.offered = False
        new: list[Place] = []
        for host in hosts:
            for index in range(host.slots):
                if (host.name, index) not in known:
                    known[host.name, index] = Place(len(self.all), host, index)
                    self.all.append(known[host.name, index])
                    new.append(known[host.name, index])
                known[host.name, index].offered = True
        for place in self.all:
            place.retired = place.retired and place.offered  # A host that comes again is as good as a new one.
        return new

    def take(self, host: Host) -> Place:
        """An agent has come to a host by itself: a slot of it that no other agent has."""
        of_host = [place for place in self.all if place.host.name == host.name]
        place = next((place for place in of_host if not place.offered), None)
        if place is None:
            place = Place(len(self.all), host, len(of_host))
            self.all.append(place)
        place.offered, place.retired = True, False
        return place

    def processes(self) -> list[RankProcess]:
        """Those that run, in the order of places."""
        return [place.process for place in self.all if place.process is not None]

    def vacant(self) -> list[Place]:
        """Places where a process could be started, now or later, those that rest least first."""
        busy = sum(process.place.usable for process in self.processes())
        free = [place for place in self.all if place.usable and place.process is None]
        free.sort(key=lambda place: (place.due_at, place.number))
        return free if self.most is None else free[: max(0, self.most + self._spares - busy)]

    def is_full(self, waiting: int) -> bool:
        """Whether there are as many ranks as may be, with so many that wait to be let in."""
        ranks = sum(process.in_epoch for process in self.processes())
        return self.most is not None and ranks + waiting >= self.most

    def choose(self, ready: Iterable[RankProcess]) -> list[RankProcess]:
        """Those of these that may become ranks together: who was one last comes first."""
        return sorted(ready, key=lambda process: (-process.epoch, process.place.number))[: self.most]

    def surplus(self) -> list[RankProcess]:
        """Processes whose place is none any more, and those that are more than may be; never so many that few stay."""
        processes = self.processes()
        surplus = [process for process in processes if not process.place.usable]
        if self.most is not None:
            usable = [process for process in processes if process.place.usable]
            ranks = [process for process in usable if process.in_epoch]
            others = [process for process in usable if not process.in_epoch]
            surplus = ranks[self.most :] + others[max(0, self.most + self._spares - len(ranks)) :] + surplus
        return surplus[: max(0, len(processes) - self._least)]

    def wanted(self) -> int:
        """How many ranks there would be if all went well."""
        offered = sum(place.usable for place in self.all)
        return offered if self.most is None else min(offered, self.most)

    def left_without(self, process: RankProcess) -> int:
        """How many ranks there are besides this one and those that leave as well.

        Who has yet to become a rank has nothing of the job's state, and is counted only where this one has not either.
        """
        others = [p for p in self.processes() if p is not process and p.place.usable and not (p.drained or p.leaves)]
        return sum(other.began_at is not None or process.began_at is None for other in others)

    def fail(self, place: Place, now: float) -> float:
        """Let a place rest, as its process has failed; returns for how long."""
        process = place.process
        began_at = None if process is None else process.began_at
        place.stillborn = place.stillborn + 1 if began_at is None else 0
        if began_at is not None and now - began_at > self._longest_s:
            place.failures = 0
        rest_s = min(self._longest_s, self._cooldown_s * 2.0**place.failures)
        place.failures += 1
        place.due_at = now + rest_s
        return rest_s


def deal(processes: Iterable[RankProcess]) -> list[tuple[RankProcess, Slot]]:
    """Deal ranks out: those of a host are neighbours, and who was a rank last comes first.

    So rank 0 has the newest state of the job. Local ranks follow the slots, so that each process keeps its device where
    all slots of a host are taken.
    """
    hosts: dict[str, list[RankProcess]] = {}
    order = sorted(processes, key=lambda p: (-p.epoch, p.rank, p.place.number))
    for process in order:
        hosts.setdefault(process.place.host.name, []).append(process)
    groups = list(hosts.values())
    dealt: list[tuple[RankProcess, Slot]] = []
    for host, group in enumerate(groups):
        by_slot = sorted(group, key=lambda p: p.place.index)
        for process in group:
            local_rank = by_slot.index(process)
            peers = [index for index, other in enumerate(groups) if len(other) > local_rank]
            slot = Slot(len(dealt), host, local_rank, len(group), peers.index(host), len(peers))
            dealt.append((process, slot))
    return dealt
