"""Replaces ranks that are slower than the others, as --evict-slow asks for."""

from __future__ import annotations

import time
from typing import Any

from ringcore.environment.straggler import Straggler
from ringcore.launcher.elastic.epochs import Epochs
from ringcore.launcher.elastic.places import RankProcess


class Replacing(Epochs):
    """Lets a straggler leave in order, so that another process takes its place."""

    _next_eviction_at = 0.0  # By `time.monotonic()`.

    def _on_slow(self, process: RankProcess, said: Any) -> None:
        try:
            straggler = Straggler(**said)
            told = _describe(process, straggler)
        except (TypeError, ValueError):  # No word of ringcore's.
            return
        now = time.monotonic()
        stays = self._finishing or self._stopping or process.leaves or process.dismissed or not process.in_epoch
        if self._asked.evict_slow is None or stays or now < self._next_eviction_at:
            return
        # Whoever comes has to get warm first, and the next one may only look slow beside it.
        self._next_eviction_at = now + self._asked.cooldown_s[1]
        if sum(other.in_epoch for other in self._places.processes()) <= self._asked.min_np:
            self._output.say(f"ringrun: {told}; it stays, as fewer ranks than --min-np {self._asked.min_np} would")
            return
        rest_s = self._places.fail(process.place, now)
        process.dismissed = True  # It is not its place that goes.
        self._say(process, {"drain": True})
        spare = any(p.ready and not p.in_epoch for p in self._places.processes())
        heir = "a spare takes its place" if spare else f"is started again in {rest_s:g} s"
        self._output.say(f"ringrun: {told}: it leaves at its next commit, and {heir} (--evict-slow)")


def _describe(process: RankProcess, straggler: Straggler) -> str:
    times = straggler.own_s / straggler.others_s if straggler.others_s > 0 else float("inf")
    return (
        f"rank {process.place.number} on {process.place.host.name} is slow: between two commits it works for "
        f"{straggler.own_s:.3g} s, and others for {straggler.others_s:.3g} s, {times:.1f} times as long, in most of "
        f"{straggler.steps:d} steps"
    )
