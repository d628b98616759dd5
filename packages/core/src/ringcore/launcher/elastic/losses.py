"""What processes of an elastic job say, and how they end."""

from __future__ import annotations

import dataclasses
import functools
import json
import time

from ringcore.launcher import _summary
from ringcore.launcher._frames import Kind
from ringcore.launcher._job import RankExit
from ringcore.launcher._summary import Failure
from ringcore.launcher.elastic.places import Place, RankProcess
from ringcore.launcher.elastic.ranks import FENCE_S
from ringcore.launcher.elastic.replacing import Replacing

# Of a line that a process writes to its launcher.
_MOST_BYTES = 1 << 16


class Losses(Replacing):
    """Hears processes, and goes on without those that have ended."""

    def on_output(self, rank: int, kind: Kind, data: bytes) -> None:
        """A process wrote something, to its launcher perhaps."""
        process = self._places.all[rank].process
        if kind is not Kind.WORD:
            super().on_output(rank, kind, data)
        elif process is not None:
            *lines, rest = (self._words.get(rank, b"") + data).split(b"\n")
            self._words[rank] = rest[:_MOST_BYTES]
            for line in lines:
                self._listen(process, line)
            self._review()

    def _listen(self, process: RankProcess, line: bytes) -> None:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):  # No word of ringcore's: the program has found the descriptor.
            return
        if said.get("leaves"):
            # By itself: nobody is to come in its place.
            process.place.retired |= not (process.leaves or process.dismissed)
            process.leaves = True
        if self._witness is not None and "view" in said and self._witness.hear(process, said):
            self._on_view(self._witness.members)
        process.apart |= bool(said.get("apart"))
        process.stranded |= bool(said.get("too_few"))
        process.connected |= said.get("connected") == process.epoch
        if "slow" in said:
            self._on_slow(process, said["slow"])
        joining = self._joining
        if joining is not None:
            if "unmet" in said and joining.at(said["unmet"]) is not None:
                self._end_meeting()
                self._tell_ranks("comes")  # They meet anew with it.
            if "met" in said:
                joining.note_met(process)
            given_up = joining.at(said["given_up"]) if "given_up" in said else None
            if given_up is not None:
                self._give_up_newcomer(joining, given_up)
        if said.get("ready"):
            if self._joining is not None and self._joining.forget(process):
                self._end_meeting()  # Which it may be awaited at.
            process.ready, process.intact = True, bool(said.get("intact"))
            for lost in (p for p in self._places.processes() if p.in_epoch and p.rank == said.get("lost")):
                self._loop.call_later(FENCE_S, functools.partial(self._fence, lost, lost.epoch))

    def on_exit(self, rank: int, how: RankExit) -> None:
        """A process has ended; the others go on."""
        process = self._places.all[rank].process
        super().on_exit(rank, how)  # Which tells of a failure.
        if how.code == 0 and process is not None and not process.leaves and not self._finishing:
            self._finishing = True
            self._failures.clear()  # They were made good.
        if process is not None:
            self._remove(process)
            self._prove_ended(process, in_order=how.code == 0)

    def _on_failure(self, failure: Failure) -> None:
        place = self._places.all[failure.rank]
        process = place.process
        if process is None or process.leaves or not place.usable:
            self._failures.remove(failure)  # It was to end, this way or another.
            return
        if process.fenced:  # It may have failed before, and only been slow to end.
            self._failures[-1] = failure = dataclasses.replace(failure, by_launcher=True)
        is_wanted = process.in_epoch or (process.began_at is None and not self._finishing)
        if not is_wanted and (self._finishing or self._are_enough()):
            self._failures.remove(failure)  # The others go on without it already, or are done.
        self._needed = self._asked.min_np
        rest_s = self._places.fail(place, time.monotonic())
        place.process = None
        if self._finishing or self._is_over():
            return
        self._output.release(failure.rank)
        others = "the others go on, and it" if self._places.processes() else "it"
        self._output.say(
            f"ringrun: rank {failure.rank} on {place.host.name} {_summary.how(failure)}; {others} is started again in "
            f"{rest_s:g} s{self._condition(place)}"
        )

    def _condition(self, place: Place) -> str:
        """What a process in this place needs besides."""
        return ""

    def _remove(self, process: RankProcess) -> None:
        was_rank, process.in_epoch = process.in_epoch, False
        process.place.process = None
        is_missed = was_rank or (self._joining is not None and self._joining.forget(process))
        if is_missed and not self._stopping:
            if was_rank and self._witness is None:
                self._tell_ranks("goes")
            self._end_meeting()
        self._review()

    def on_lost(self, index: int, reason: str, code: int) -> None:
        """A host is gone, or could not start a process."""
        process = self._places.all[index].process
        if process is None or not self._layout.nodes[index].is_far:
            super().on_lost(index, reason, code)
            return
        self._open.discard(index)
        self._running.discard(index)
        self._hosts[index].close()
        if not self._stopping:
            self._output.say(f"ringrun: {reason}")
            self._failures.append(Failure(index, RankExit(code), reason, by_launcher=False))
            self._on_failure(self._failures[-1])
        self._remove(process)
        # An agent that hears nothing ends its ranks. Until then they may be more than half of the job, and go on.
        self._cut_off.append(process)
        limit_s = self._options.agent_timeout + FENCE_S
        self._loop.call_later(limit_s, functools.partial(self._prove_ended, process))

    def on_done(self, index: int) -> None:
        """Nothing is left of the process of a place."""
        super().on_done(index)
        self._review()
