"""Who meets whom in an elastic job, who joins those who have met, and who of them goes on without others."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from typing import Any

from ringcore.environment import settings as _settings
from ringcore.environment.settings import Settings
from ringcore.launcher._hosts import Slot
from ringcore.launcher.elastic.joining import Joining
from ringcore.launcher.elastic.places import RankProcess, deal
from ringcore.launcher.elastic.ranks import FENCE_S
from ringcore.launcher.elastic.starting import ENGINE_VARIABLE, Starting
from ringcore.launcher.elastic.witness import Witness

# Whoever joins or meets the others has imported everything: to be connected with them takes it far less.
_CONNECT_S = 10.0


class Epochs(Starting):
    """Lets processes become ranks, and follows what these agree on."""

    def _announce_coming(self) -> None:
        """Lets others join the ranks, or tells these of them, once those that start together are all there."""
        joining = self._joining
        now = time.monotonic()
        if joining is not None and joining.meets is not None and joining.due_by <= now:
            self._give_up_newcomer(joining, joining.meets)
        if joining is not None and (not joining.is_settled() or joining.meets is not None):
            return
        if self._places.is_full(0 if joining is None else joining.waiting):  # Spares wait.
            return
        new = [p for p in self._places.processes() if not (p.in_epoch or p.leaves)]
        # Who was to join and did not keeps nobody waiting.
        if not any(p.ready for p in new) or not all(p.ready or p.tries or p.due_by <= now for p in new):
            return
        newcomer = next(p for p in new if p.ready)
        if joining is None or self._heralded or not joining.is_possible(newcomer):
            self._tell_ranks("comes")
        else:
            self._let_join(joining, newcomer)

    def _let_join(self, joining: Joining, newcomer: RankProcess) -> None:
        assert self._server is not None
        self._epoch += 1
        self._server.announce(self._epoch, joining.guests())
        limit_s = min(self._start_timeout_s, _CONNECT_S)
        joining.begin(newcomer, self._epoch, limit_s)
        self._loop.call_later(limit_s, self._review)

    def _give_up_newcomer(self, joining: Joining, process: RankProcess) -> None:
        """It hangs, or cannot be reached by a rank: others may join now. Where it does not come again, it is ended."""
        tries = process.tries
        joining.forget(process)
        self._end_meeting()

        def end() -> None:
            if process.tries == tries:  # It may try once more.
                self._fence(process, epoch)

        epoch = process.epoch
        self._loop.call_later(FENCE_S, end)

    def _dismiss(self) -> None:
        """Lets go whoever has no place any more: as a rank it ends its step first."""
        for process in self._places.surplus():
            if process.leaves:
                continue
            if process.ready:
                process.leaves = True
                self._say(process, {"dismissed": True})
            elif process.in_epoch and self._witness is None:
                self._tell_ranks("goes")
            elif process.in_epoch and not process.dismissed:
                process.dismissed = True
                self._say(process, {"drain": True})

    def _deal(self) -> None:
        """Begins the next epoch, if all are there that should be."""
        processes = [process for process in self._places.processes() if not process.leaves]
        ready = [process for process in processes if process.ready]
        awaited = [p for p in processes if p.in_epoch or not (self._began or self._impatient)]
        if not ready or not all(p.ready for p in awaited) or len(ready) < self._least() or self._server is None:
            return
        if self._witness is not None and any(map(self._witness.may_go_on, self._cut_off)):
            return
        ready = self._places.choose(ready)
        if self._began:
            self._count_change(ready)
            if self._is_spent():
                self._end_at_limit()
                return
        self._began, self._members = True, ready
        self._needed = self._asked.min_np
        self._epoch += 1
        self._heralded.clear()
        self._failures.clear()
        self._server.announce(self._epoch, len(ready))
        dealt = deal(ready)
        self.note(f"membership {self._epoch}: ranks are those of the places {[p.place.number for p, _ in dealt]}")
        for process in self._places.processes():
            process.in_epoch = False
        newest = max(process.epoch for process in ready)
        sync = not all(process.intact and process.epoch == newest for process in ready)
        now = time.monotonic()
        for process, slot in dealt:
            process.rank, process.epoch, process.in_epoch, process.ready = slot.rank, self._epoch, True, False
            process.apart = process.connected = False
            process.tries = process.disturbed = 0
            process.began_at = process.began_at or now
            process.place.stillborn = 0
            asked = {"least": self._asked.min_np, "evict_slow": self._asked.evict_slow}
            self._say(process, {"dealt": {**self._placement(slot, len(dealt)), "sync": sync, **asked}})
        if self._start_timeout_s > _CONNECT_S:
            self._loop.call_later(_CONNECT_S, functools.partial(self._end_who_does_not_meet, self._epoch))
        self._witness = self._joining = None
        if self._engines_go_on():
            self._witness = Witness(self._epoch, [process for process, _ in dealt], self._say)
            settings = Settings.from_environ({**os.environ, **self._job_environ()})
            if settings.transport != "mpi":
                self._joining = Joining(self._witness, self._given.job_id, self._asked, self._say)

    def _end_at_limit(self) -> None:
        """Its ranks have become others once more than they may."""
        limit = self._asked.reset_limit
        times = "once" if self._changes == 1 else f"{self._changes} times"
        self._give_in(
            f"its ranks have changed {times}, and --reset-limit allows {limit}; the last change was "
            f"{self._last_change}. Remedy: a higher --reset-limit, or none. A rank that is lost and one that comes in "
            "its place are two changes"
        )

    def _end_who_does_not_meet(self, epoch: int) -> None:
        """Ends ranks that were ready, and keep the others waiting at the rendezvous: they were stopped, or hang."""
        posted = self._server.posted() if self._server is not None and self._epoch == epoch else []
        for process in self._places.processes() if posted else []:
            if process.in_epoch and process.rank not in posted:
                self._fence(process, epoch)

    def _placement(self, slot: Slot, size: int) -> dict[str, Any]:
        placement = dataclasses.asdict(slot)
        del placement["host"], placement["serves"]  # Elastic jobs have no servers.
        return {**placement, "size": size, "epoch": self._epoch, "job_id": self._given.job_id}

    # Who goes on without whom.

    def _engines_go_on(self) -> bool:
        text = self._job_environ().get(ENGINE_VARIABLE, "")
        return bool(_settings.parse("elastic", text))

    def _prove_ended(self, process: RankProcess, *, in_order: bool = False) -> None:
        """A process is no more: its engine's peers may not see that."""
        if process in self._cut_off:
            self._cut_off.remove(process)
        if self._witness is not None and not self._stopping:
            self._witness.prove_ended(process, in_order=in_order)
        self._review()

    def _on_view(self, members: list[RankProcess]) -> None:
        """Ranks have agreed to go on without others, in their processes."""
        self._epoch += 1
        self._count_change(members)
        self.note(f"membership {self._epoch}: the ranks of the places {[p.place.number for p in members]} go on")
        for process in self._places.processes():
            if process.in_epoch and process not in members:
                process.in_epoch = False
                self._loop.call_later(FENCE_S, functools.partial(self._fence, process, process.epoch))
        if self._joining is not None:
            self._joining.take(members, time.monotonic())
        for rank, process in enumerate(members):
            process.rank, process.epoch = rank, self._epoch
        if self._are_enough() and not self._is_spent():
            self._failures.clear()  # They were made good.

    def _fence(self, process: RankProcess, epoch: int) -> None:
        """Ends a process that others have lost, and that still has not come to meet them: it was stopped, or hangs."""
        number = process.place.number
        if process.place.process is process and process.epoch == epoch and not (process.ready or process.apart):
            self._output.say(f"ringrun: rank {number} on {process.place.host.name} does not answer, and is killed")
            process.fenced = True
            self._hosts[number].kill()
