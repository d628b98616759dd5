"""An elastic job whose agents a scheduler starts: each that comes is a slot of its host, as long as it is there."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ringcore._errors import BootstrapError
from ringcore.launcher._hosts import Host, Slot
from ringcore.launcher._layout import Node
from ringcore.launcher._placed import EACH_OPENS, PlacedHost
from ringcore.launcher._supervisor import NodeEvents
from ringcore.launcher.elastic.places import Place, RankProcess
from ringcore.launcher.elastic.supervisor import ElasticSupervisor

if TYPE_CHECKING:
    import socket

    from ringcore.bootstrap.auth import Hello


# Descriptors are reserved for so many agents at a time.
_ROOM = 64


class PlacedElasticSupervisor(ElasticSupervisor):
    """One such job from start to end."""

    _agent_class = PlacedHost
    _agent_word = "task"
    _room = 0  # For so many agents there are descriptors.
    _names: dict[str, str]  # Of each machine, as it is shown.
    _strangers: set[Arrival]  # Agents that have not said where they are.

    def _look_for_hosts(self) -> None:
        assert self._given.gate is not None
        self._names, self._strangers = {}, set()
        self._serve_at(self._layout.bind)
        self._given.gate.welcome_all(self._welcome)
        self._too_few = self._loop.call_later(self._asked.elastic_timeout, self._on_too_few)

    def run(self) -> int:  # noqa: D102
        try:
            return super().run()
        finally:
            for arrival in self._strangers:
                arrival.agent.close()

    def _is_over(self) -> bool:
        # Without places others may come; how long they are waited for is said by --elastic-timeout.
        return super()._is_over() and (self._finishing or bool(self._failures))

    def _whom(self) -> str:
        return "the scheduler to start tasks"

    def _make_slots(self, size: int) -> None:
        self._review()

    def _condition(self, place: Place) -> str:
        return "" if place.number in self._hello else ", if the scheduler starts its task again"

    # Agents.

    def _welcome(self, connection: socket.socket, hello: Hello, secret: bytes) -> None:
        name = f"{self._agent_word} {hello.from_rank}"
        if self._stopping or not self._has_room_for(name):
            connection.close()
            return
        arrival = Arrival(self)
        self._strangers.add(arrival)
        arrival.agent = self._agent_class(self._loop, name, arrival, self._options.agent_timeout)
        arrival.agent.attach(connection, secret)

    def _has_room_for(self, name: str) -> bool:
        from ringcore.bootstrap.sockets import reserve_descriptors

        if not self._room:  # To count what is open takes the longer the more have come.
            try:
                reserve_descriptors(_ROOM * EACH_OPENS, "the launcher")
            except BootstrapError as error:
                self._output.say(f"ringrun: {name} is turned away: {error}")
                return False
            self._room = _ROOM
        self._room -= 1
        return True

    def take(self, arrival: Arrival, hello: dict[str, Any]) -> None:
        """An agent has said where it is: it has a place from now on."""
        self._strangers.discard(arrival)
        place = self._places.take(Host(self._name_of(hello), 1))
        number = arrival.number = place.number
        self._hosts[number], self._hello[number] = arrival.agent, hello
        nodes = tuple(_node_of(place) for place in self._places.all)
        hosts = {node.name for node in nodes}
        self._layout = dataclasses.replace(self._layout, size=len(nodes), group_size=len(hosts), nodes=nodes)
        self.note(f"{place.host.name} answers: place {number}, Python {hello['python']}")
        self._review()

    def forget(self, arrival: Arrival) -> None:
        """An agent has gone before it said where it was."""
        self._strangers.discard(arrival)
        arrival.agent.close()

    def _name_of(self, hello: dict[str, Any]) -> str:
        machine, host = hello["machine"], hello["host"]
        if machine not in self._names:
            namesakes = sum(name.partition(" ")[0] == host for name in self._names.values())
            self._names[machine] = f"{host} ({namesakes + 1})" if namesakes else host
        return self._names[machine]

    def _start_at(self, number: int) -> None:
        self._hosts[number].start(self._job_at(number))

    def on_done(self, index: int) -> None:  # noqa: D102
        if not self._agent_class.stays:
            self._withdraw(index)
        super().on_done(index)

    def on_lost(self, index: int, reason: str, code: int) -> None:  # noqa: D102
        del self._hello[index]
        if self._places.all[index].process is not None:
            super().on_lost(index, reason, code)
        self._open.discard(index)
        self._withdraw(index)
        self._review()

    def _remove(self, process: RankProcess) -> None:
        if process.place.number not in self._hello:  # Its agent has gone with it: nothing can follow it there at once.
            self._withdraw(process.place.number)
        super()._remove(process)

    def _withdraw(self, number: int) -> None:
        """Its agent has gone: nothing can be started in this place until one comes."""
        self._places.all[number].offered = False
        self._hosts[number].close()


class Arrival(NodeEvents):
    """An agent, which has a place once it has said where it is."""

    agent: PlacedHost

    number: int | None = None  # Of its place.

    def __init__(self, supervisor: PlacedElasticSupervisor) -> None:
        super().__init__(supervisor, -1)
        self._owner = supervisor

    def on_done(self) -> None:  # noqa: D102
        if self.number is not None:
            self._owner.on_done(self.number)

    def on_hello(self, hello: dict[str, Any]) -> None:  # noqa: D102
        if self.number is None:
            self._owner.take(self, hello)

    def on_lost(self, reason: str, code: int) -> None:  # noqa: D102
        if self.number is None:
            self._owner.forget(self)
        else:
            self._owner.on_lost(self.number, reason, code)


def _node_of(place: Place) -> Node:
    return Node(place.host.name, (Slot(place.number, place.number, place.index, 1, 0, 1),), placed=True)
