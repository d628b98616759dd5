"""Starts processes in the places of an elastic job."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from ringcore.environment import settings as _settings
from ringcore.launcher import _layout, _process
from ringcore.launcher._hosts import Slot
from ringcore.launcher._job import HostJob
from ringcore.launcher._loop import Timer
from ringcore.launcher._supervisor import NodeEvents
from ringcore.launcher.agent import Agent
from ringcore.launcher.elastic.places import Place, RankProcess, deal
from ringcore.launcher.elastic.ranks import Ranks

ENGINE_VARIABLE = _settings.variable("elastic")


class Starting(Ranks):
    """Starts a process wherever one may be."""

    _next_start: Timer | None = None
    _words: dict[int, bytes]  # Of each process, those of a line that is not whole yet.

    def _start_due(self) -> None:
        if self._next_start is not None:
            self._next_start.cancel()
        if self._finishing or self._is_over():
            return
        now = time.monotonic()
        vacant = [place for place in self._places.vacant() if place.number not in self._open]
        for place in vacant:
            if place.due_at <= now and not self._stopping:
                self._begin(place)
        later = [place.due_at for place in vacant if place.due_at > now]
        if later:
            self._next_start = self._loop.call_later(min(later) - now, self._review)

    def _begin(self, place: Place) -> None:
        place.process = RankProcess(place, due_by=time.monotonic() + self._start_timeout_s)
        self._loop.call_later(self._start_timeout_s, self._review)
        number = place.number
        self._open.add(number)
        self._running.add(number)
        self._words.pop(number, None)
        self._output.begin(number)
        try:
            self._start_at(number)
        except _process.StartError as error:
            self.on_lost(number, str(error), error.exit_code)

    def _start_at(self, number: int) -> None:
        node, events = self._layout.nodes[number], NodeEvents(self, number)
        if node.remote is not None:
            self._hello.pop(number, None)
            self._hosts[number] = self._connect_to(node, events)  # Which will say hello.
            return
        agent = self._hosts[number] = Agent(self._loop, self._guard, events)
        agent.start(self._job_at(number))

    def on_hello(self, index: int, hello: dict[str, Any]) -> None:
        """The agent of a place on another host is there."""
        self._hello[index] = hello
        self.note(f"{self._layout.nodes[index].name} answers: {hello['host']}, Python {hello['python']}")
        self._hosts[index].start(self._job_at(index))

    def _job_at(self, number: int) -> HostJob:
        assert self._server is not None
        node = self._layout.nodes[number]
        job = self._job_of(number, node, self._job_environ())
        slot, size = self._expected(number)
        environ = _layout.rank_environ(dataclasses.replace(self._layout, size=size), slot, self._options.role)
        ranks = tuple(dataclasses.replace(rank, environ=environ) for rank in job.ranks)
        return dataclasses.replace(
            job, ranks=ranks, stdin_rank=None, speaks=True, sharers=slot.local_size, host=node.name,
            drain_when=self._asked.drain_when,
        )  # fmt: skip

    def _job_environ(self) -> dict[str, str]:
        assert self._server is not None
        address = self._server.address
        common = _layout.common_environ(self._options, self._layout, self._given.job_id, address, self._master_port)
        common.setdefault(ENGINE_VARIABLE, os.environ.get(ENGINE_VARIABLE) or "1")
        return {**common, "HOROVOD_ELASTIC": "1"}

    def _expected(self, number: int) -> tuple[Slot, int]:
        """A process's place among all that could be there: scripts read it before they have met anybody."""
        now = time.monotonic()
        coming = [RankProcess(place) for place in self._places.vacant() if place.due_at <= now]
        dealt = deal([*self._places.processes(), *coming])
        return next(slot for process, slot in dealt if process.place.number == number), len(dealt)
