"""The launcher's end of the connections of agents that a scheduler has started: they dial, and prove the job's key."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ringcore.launcher import _hosts
from ringcore.launcher._frames import Kind, Seals, table_of
from ringcore.launcher._layout import JobLayout, Node
from ringcore.launcher._remote import FarHost, RemoteEvents

if TYPE_CHECKING:
    from ringcore.bootstrap.auth import Hello
    from ringcore.launcher._loop import Loop

# Strangers that do not finish the handshake are looked for so often.
_LOOK_S = 1.0
# What was sent is not acknowledged for so long: the other host has gone without a word. `_remote` pings every second.
_SILENT_MS = 10_000


# Descriptors of one agent's connection, here.
EACH_OPENS = 2


class PlacedHost(FarHost):
    """One rank's agent, once it has dialled."""

    def __init__(self, loop: Loop, name: str, events: RemoteEvents, silence_limit_s: float) -> None:
        super().__init__(loop, name, events, silence_limit_s)
        self._socket: socket.socket | None = None
        self._fd = -1

    def attach(self, connection: socket.socket, secret: bytes) -> bool:
        """Take the agent's connection; false where there is one already, or the job is over."""
        if self._socket is not None or self._over:
            return False
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MS)
        self._fd = os.dup(connection.fileno())
        self._connected(connection.fileno(), self._fd, Seals.of_launcher(secret))
        return True

    def _on_frame(self, kind: Kind, rank: int, payload: bytes) -> None:
        if kind is Kind.HELLO:
            self._name = f"{table_of(payload, host=str, machine=str, address=str)['host']} ({self._name})"
        super()._on_frame(kind, rank, payload)

    def _on_close(self, reason: str) -> None:
        self._lose(f"its agent has gone ({reason}): the scheduler ended the task, or something killed its process", 1)

    def close(self) -> None:
        """Cut the connection, upon which the agent ends its rank."""
        super().close()
        if self._socket is not None:
            self._socket.close()
            os.close(self._fd)
            self._socket = None


class Gate:
    """Where the agents dial.

    Args:
        loop: Calls back.
        key: The job's key.
        listener: Descriptor of the socket.
    """

    def __init__(self, loop: Loop, key: bytes, listener: int) -> None:
        from ringcore.bootstrap.acceptor import Acceptor

        self._loop = loop
        self._hosts: dict[int, PlacedHost] = {}
        self._welcome: Callable[[socket.socket, Hello, bytes], None] | None = None
        self._acceptor = Acceptor([socket.socket(fileno=listener)], key, self._accepted)
        loop.on_readable(self._acceptor.fileno(), lambda: self._acceptor.service(0))
        self._look()

    def host(self, index: int, name: str, events: RemoteEvents, silence_limit_s: float) -> PlacedHost:
        """The agent of this number, which may come later.

        Raises:
            BootstrapError: It has no place among the files that may be open.
        """
        from ringcore.bootstrap.sockets import reserve_descriptors

        reserve_descriptors(EACH_OPENS * (len(self._hosts) + 1), f"the launcher of {len(self._hosts) + 1} ranks")
        self._hosts[index] = PlacedHost(self._loop, name, events, silence_limit_s)
        return self._hosts[index]

    def welcome_all(self, welcome: Callable[[socket.socket, Hello, bytes], None]) -> None:
        """Let this take each agent that comes, whatever its number: of an elastic job."""
        self._welcome = welcome

    def close(self) -> None:
        """Let nobody in any more."""
        self._loop.forget(self._acceptor.fileno())
        self._timer.cancel()
        self._acceptor.close()

    def _look(self) -> None:
        self._acceptor.service(0)
        self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _accepted(self, connection: socket.socket, hello: Hello, secret: bytes) -> None:
        from ringcore.bootstrap.auth import AGENT

        host = self._hosts.get(hello.from_rank)
        if hello.purpose == AGENT and self._welcome is not None:
            self._welcome(connection, hello, secret)
        # One that comes a second time is a task that the scheduler has tried again: another job is made for that.
        elif hello.purpose != AGENT or host is None or not host.attach(connection, secret):
            connection.close()


def layout_of(size: int, bind: str) -> JobLayout:
    """A job of which nobody knows yet where its ranks will run, nor how many, if its size is 0."""
    slots = _hosts.slots_of([1] * size)
    nodes = tuple(Node(f"task {index}", (slot,), placed=True) for index, slot in enumerate(slots))
    return JobLayout(size, size, nodes, bind=bind)


def arrange(layout: JobLayout, hellos: Sequence[dict[str, Any]]) -> JobLayout:
    """The same job once all agents have said where they are: ranks of a host are neighbours."""
    machines = list(dict.fromkeys(hello["machine"] for hello in hellos))
    order = sorted(range(len(hellos)), key=lambda index: machines.index(hellos[index]["machine"]))
    counts = [sum(hello["machine"] == machine for hello in hellos) for machine in machines]
    slot_of = dict(zip(order, _hosts.slots_of(counts), strict=True))
    nodes = tuple(
        dataclasses.replace(node, name=hellos[index]["host"], slots=(slot_of[index],))
        for index, node in enumerate(layout.nodes)
    )
    return dataclasses.replace(layout, nodes=nodes, group_size=len(machines), master_addr=hellos[0]["address"])
