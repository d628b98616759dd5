"""Which hosts an elastic job may use, and what `ringcore scale` and `ringcore drain` ask for."""

from __future__ import annotations

import dataclasses
import os
import re

from ringcore.environment.settings import Settings
from ringcore.environment.watching import OrderError
from ringcore.launcher import _hosts, _layout
from ringcore.launcher._hosts import Host, HostError, Slot
from ringcore.launcher._job import LEAVING
from ringcore.launcher._layout import Node
from ringcore.launcher._summary import list_ranks
from ringcore.launcher.elastic.losses import Losses
from ringcore.launcher.elastic.places import Place


class Orders(Losses):
    """Follows who decides from outside how large the job is."""

    def _on_hosts(self, hosts: list[Host]) -> None:
        self.note(f"hosts: {', '.join(f'{host.name}:{host.slots}' for host in hosts) or 'none'}")
        try:
            self._serve(hosts)
        except HostError as error:
            self._on_problem(str(error))
            return
        for host in hosts:
            if self._bind == "127.0.0.1" and not _hosts.is_local(host):
                self._output.say(
                    f"ringrun: host {host.name} is left out: the job began on this machine alone, where its ranks meet "
                    "at 127.0.0.1. Name an interface that all hosts reach by --network-interface"
                )
                hosts = [other for other in hosts if other is not host]
        new = self._places.offer(hosts)
        nodes = tuple(_node_of(place) for place in self._places.all)
        self._layout = dataclasses.replace(self._layout, size=len(nodes), group_size=len(hosts), nodes=nodes)
        try:
            self._output.create_logs(place.number for place in new)
        except OSError as error:
            self._on_problem(f"cannot write to --log-dir {self._options.log_dir}: {error.strerror}")
        self._review()

    def _serve(self, hosts: list[Host]) -> None:
        if self._server is None and hosts:
            settings = Settings.from_environ({**os.environ, **self._options.settings})
            self._serve_at(_layout.bind_address(hosts, settings))

    def _serve_at(self, bind: str) -> None:
        assert self._given.serve is not None
        self._bind = bind
        self._server = self._given.serve(bind)
        self._layout = dataclasses.replace(self._layout, master_addr=self._layout.master_addr or bind)

    def _on_problem(self, text: str) -> None:
        self._output.say(f"ringrun: {text}")
        self._review()

    def order(self, order: str) -> str:  # noqa: D102
        if self._stopping:
            raise OrderError("the job ends")
        word, _, wanted = order.partition(" ")
        if word == "drain":
            return self._drain(wanted)
        match = re.fullmatch(r"([+=-])([0-9]{1,6})", wanted, re.ASCII)
        if match is None:
            raise OrderError(f"{wanted!r} is no number of ranks: write +2, -1 or =6")
        base = 0 if match[1] == "=" else self._places.wanted()
        return self._scale(base - int(match[2]) if match[1] == "-" else base + int(match[2]))

    def _scale(self, size: int) -> str:
        if size < self._asked.min_np:
            raise OrderError(self._too_few_for(size))
        self._places.most = size
        for place in self._places.all:
            place.retired = False
        self._make_slots(size)
        wanted = self._places.wanted()
        more = "" if wanted == size else f", as there are no more slots than that for {size}"
        return f"{are(wanted)} wanted from now on{more}"

    def _make_slots(self, size: int) -> None:
        """Where nobody has named hosts, this one has as many slots as are asked for."""
        if self._asked.host_discovery_script is None and not (self._options.hosts or self._options.hostfile):
            slots = max(size, len(self._places.all))
            self._on_hosts([Host("localhost", slots)])
        else:
            self._review()

    def _drain(self, number: str) -> str:
        process = next((p for p in self._places.processes() if str(p.place.number) == number), None)
        if process is None or process.leaves:
            there = list_ranks([p.place.number for p in self._places.processes() if not p.leaves])
            raise OrderError(f"there is no rank {number} that could leave; there are {there}")
        left = self._places.left_without(process)
        if left < self._asked.min_np:
            raise OrderError(
                f"without rank {number} {self._too_few_for(left)}. Remedy: let another rank come before it goes, by "
                "`ringcore scale JOB +1`, or end the job"
            )
        process.drained = True
        self._say(process, {"drain": True})
        return f"rank {number} leaves {LEAVING}"

    def _too_few_for(self, size: int) -> str:
        return f"{'1 rank is' if size == 1 else f'{size} ranks are'} less than --min-np {self._asked.min_np}"


def are(count: int) -> str:
    """So many ranks, with the verb."""
    return "1 rank is" if count == 1 else f"{count or 'no'} ranks are"


def _node_of(place: Place) -> Node:
    slot = Slot(place.number, place.number, place.index, place.host.slots, 0, 1)
    return Node(place.host.name, (slot,), None if _hosts.is_local(place.host) else place.host)
