"""An agent that nobody has started over ssh dials its launcher, and both prove the job's key."""

from __future__ import annotations

import socket
from pathlib import Path

from ringcore.bootstrap.auth import AGENT, Hello, Key, authenticate, until_let_in
from ringcore.bootstrap.sockets import dial


def dial_launcher(
    address: str, key: Key, number: int, deadline: float, *, listens: bool = False
) -> tuple[socket.socket, bytes]:
    """Connect to a launcher that has room for this agent.

    Args:
        address: As "tcp:host:port".
        key: The job's key.
        number: Of the agent.
        deadline: By `time.monotonic()`.
        listens: See `dial`.

    Returns:
        The connection, and the secret that only its two ends know.

    Raises:
        BootstrapError: Nobody answers, or the other end has another key.
    """

    def enter() -> tuple[socket.socket, bytes]:
        connection = dial(address, deadline, listens=listens)
        try:
            secret = authenticate(connection, key, Hello(AGENT, 0, number, 0), deadline)
        except BaseException:
            connection.close()
            raise
        connection.setblocking(True)
        return connection, secret

    return until_let_in(enter, deadline)


def machine() -> str:
    """The same for agents whose ranks can share memory and devices: on one kernel, and in one container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"
