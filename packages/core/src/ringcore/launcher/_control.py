"""Where a running elastic job can be told to change: a socket in the kernel's own namespace, for this user alone."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringcore.environment.private_folder import peer_uid

if TYPE_CHECKING:
    from ringcore.launcher._loop import Loop

JOB_HELP = "name of the job: that of --rdzv-id, or the one that ringrun --verbose tells"
_MOST_BYTES = 4096
_WAITING = 8
_LIMIT_S = 10.0


class ControlError(ValueError):
    """What was asked for cannot be done; the message says why."""


def _prefix() -> str:
    return f"ringcore-job-{os.getuid()}-"


class Control:
    """The launcher's end.

    Args:
        loop: Calls back.
        job: Name of the job.
        answer: Takes what is asked for, and returns what to say; it may raise `ControlError`.
    """

    def __init__(self, loop: Loop, job: str, answer: Callable[[dict[str, Any]], str]) -> None:
        self._loop = loop
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._listener.bind(f"\0{_prefix()}{job}")
        except OSError as error:
            self._listener.close()
            raise ControlError(f"there is a job {job!r} already: give this one another name by --rdzv-id") from error
        self._listener.listen(_WAITING)
        loop.on_readable(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Take no more orders."""
        self._loop.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if peer_uid(connection) != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        self._loop.on_readable(connection.fileno(), functools.partial(self._serve, connection))

    def _serve(self, connection: socket.socket) -> None:
        self._loop.forget(connection.fileno())
        with connection, contextlib.suppress(OSError):  # Whoever asked has gone.
            try:
                asked = json.loads(connection.recv(_MOST_BYTES))
                answer = {"said": self._answer(asked if isinstance(asked, dict) else {})}
            except (ValueError, RecursionError) as error:  # A ControlError is one.
                answer = {"refused": str(error)}
            connection.sendall(json.dumps(answer).encode())


def ask(job: str, message: dict[str, Any]) -> str:
    """Tell a job of this user on this machine to change.

    Args:
        job: Its name.
        message: What is asked for.

    Returns:
        What its launcher says.

    Raises:
        ControlError: There is no such job, or it refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_LIMIT_S)
        try:
            connection.connect(f"\0{_prefix()}{job}")
            if peer_uid(connection) != os.getuid():
                raise ControlError(f"job {job!r} is another user's")
            connection.sendall(json.dumps(message).encode())
            answer = json.loads(connection.recv(1 << 16))
        except (OSError, ValueError) as error:
            if isinstance(error, ControlError):
                raise
            there = ", ".join(jobs()) or "none"
            raise ControlError(f"no elastic job {job!r} answers on this machine; there are: {there}") from error
    if "refused" in answer:
        raise ControlError(answer["refused"])
    return str(answer["said"])


def jobs() -> list[str]:
    """Names of this user's elastic jobs whose launchers run on this machine."""
    begin = f"@{_prefix()}"
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        names = [line.split()[-1] for line in file if begin in line]
    return sorted({name.removeprefix(begin) for name in names if name.startswith(begin)})


def order(job: str, message: dict[str, object]) -> int:
    """Ask a job for something, and print what it says; the exit code."""
    try:
        print(ask(job, message))
    except ControlError as error:
        print(f"ringcore: {error}", file=sys.stderr)
        return 1
    return 0
