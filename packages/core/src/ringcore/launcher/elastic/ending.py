"""When an elastic job ends: it is done, has no future, or too few are there for too long."""

from __future__ import annotations

import time

from ringcore.launcher._loop import Timer
from ringcore.launcher._summary import list_ranks
from ringcore.launcher._supervisor import FORWARDED
from ringcore.launcher.elastic.orders import Orders, are

# Whoever has left in order may still save something, when the others are done.
_LEAVING_S = 30.0


class Ending(Orders):
    """Ends the job."""

    _too_few: Timer | None = None
    _overdue = False  # That time is over, and only who was on the way by then is waited for.
    _last: Timer | None = None  # When nobody is waited for that has left.

    def _ends(self) -> bool:
        """Ends a job that has no future: it is done, or starting once more would not help."""
        limit = self._asked.reset_limit
        doomed = [place for place in self._places.all if limit is not None and place.stillborn > limit]
        processes = self._places.processes()
        has_state = any(process.began_at is not None for process in processes)
        if self._is_spent() and not self._finishing and not self._knows_too_little():
            self._end_at_limit()
        elif doomed:
            number, times = doomed[0].number, doomed[0].stillborn
            self._give_in(f"rank {number} has failed {times} times before it met the others (--reset-limit {limit})")
        elif self._finishing and self._began and processes and not any(p.began_at and not p.leaves for p in processes):
            if not any(process.leaves for process in processes):
                self._end_well()  # Who is only on the way comes too late.
            elif self._last is None:
                self._last = self._loop.call_later(self._options.shutdown_timeout or _LEAVING_S, self._end_well)
        elif self._began and processes and not has_state and not self._may_start_anew():
            self._give_in("no rank is left that has the state of the job")
        elif not self._began and limit is None and self._failures and all(p.stillborn for p in self._places.all):
            self._give_in("each rank has failed before it met the others")
        return self._stopping

    def _end_well(self) -> None:
        """Ends a job that is done."""
        if not self._failures:
            self._exit_code = 0
        self._end_others()

    def _watch_number(self) -> None:
        """Waits for others, though not for ever, where there are fewer ranks than may go on."""
        processes = self._places.processes()
        stranded = sum(process.stranded for process in processes)
        at_work = any(process.in_epoch and not (process.ready or process.stranded) for process in processes)
        if at_work or self._finishing or self._stopping or self._is_over():
            if self._too_few is not None:
                self._too_few.cancel()
                self._too_few, self._overdue = None, False
        elif self._overdue and len(processes) < self._least():
            self._end_with_too_few()
        elif self._too_few is None and (stranded or len(processes) < self._least()):
            limit_s = self._asked.elastic_timeout
            self._too_few = self._loop.call_later(limit_s, self._on_too_few)
            awaited = "nobody, as nobody can join ranks outside of elastic.run" if stranded else self._whom()
            self._output.say(
                f"ringrun: {are(stranded or len(processes))} there, and at least {self._least()} must be to go on: "
                f"waiting for {awaited}, {limit_s:g} s at most (--elastic-timeout)"
            )

    def _whom(self) -> str:
        vacant = self._places.vacant()
        if not vacant:
            return f"free slots from {self._asked.host_discovery_script or 'the hosts'}"
        hosts = ", ".join(dict.fromkeys(place.host.name for place in vacant))
        return f"{list_ranks(sorted(place.number for place in vacant))} on {hosts} to start again"

    def _on_too_few(self) -> None:
        """Ends the job, unless enough are on their way: each of those has a time of its own, and it is waited for."""
        processes = self._places.processes()
        due_by = max((p.due_by for p in processes if not (p.in_epoch or p.ready)), default=0.0)
        left_s = due_by - time.monotonic()
        if left_s <= 0 or len(processes) < self._least() or any(process.stranded for process in processes):
            self._end_with_too_few()
            return
        self._overdue = True
        self._too_few = self._loop.call_later(left_s, self._on_too_few)
        self._output.say(
            f"ringrun: --elastic-timeout is over, but enough ranks are on their way: waiting for them, "
            f"{left_s:.0f} s at most (RINGCORE_START_TIMEOUT_S)"
        )

    def _end_with_too_few(self) -> None:
        self._give_in(
            f"there were less than {self._least()} ranks, too few to go on, for {self._asked.elastic_timeout:g} s "
            "(--elastic-timeout)"
        )

    def _knows_too_little(self) -> bool:
        """Whether the ranks go on without one that still runs: it may be done, or its end tell why it was lost."""
        gone = [p for p in self._places.processes() if p.began_at is not None and not p.in_epoch]
        return any(not (process.ready or process.leaves) for process in gone)

    def _give_in(self, reason: str) -> None:
        """Ends the job, with the exit code and the last words of the rank that failed first."""
        self._output.say(f"ringrun: the job ends: {reason}")
        if not self._failures:
            self._exit_code = 1
        self._end_others()

    def _on_signal(self, number: int) -> None:
        if self._open or self._stopping or self._is_over() or number in FORWARDED:
            super()._on_signal(number)
        else:  # It waits for hosts, and has nobody to end.
            self._signal = number
            self._begin_no_more()
            self._stopping = True

    def _begin_stop(self, number: int, grace_s: float) -> None:
        self._begin_no_more()
        super()._begin_stop(number, grace_s)

    def _kill(self) -> None:
        self._begin_no_more()
        super()._kill()
        self._stopping = True

    def _begin_no_more(self) -> None:
        """Asks for no more hosts, and lets go of those that have yet to answer: one that did would begin a process."""
        if self._discovery is not None:
            self._discovery.close()
        for index in [i for i in self._open if self._layout.nodes[i].is_far and i not in self._hello]:
            self._hosts[index].close()
            self._open.discard(index)
            self._running.discard(index)
