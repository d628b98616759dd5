"""The launcher's part of looking at a running job: it asks its own ranks, and the agents of other hosts theirs.

Who may look may change an elastic job as well, by the same door.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ringcore.environment import watching
from ringcore.launcher._loop import Loop

# What ranks answer, by rank, as JSON has it. Those that have not called init(), or have left, are not there.
Answers = dict[str, Any]
# A rank whose thread holds Python's lock answers later. Whoever asked is told what came until then.
RANK_LIMIT_S = 2.0
HOST_LIMIT_S = 3.0
_READ_BYTES = 1 << 16


class RankInquiry:
    """Ask ranks of this host, and call `done` with their answers.

    Args:
        loop: Calls back.
        paths: Where each rank listens.
        question: One of `watching.QUESTIONS`.
        done: Called once.
    """

    def __init__(self, loop: Loop, paths: Mapping[int, Path], question: str, done: Callable[[Answers], None]) -> None:
        self._loop = loop
        self._done = done
        self._answers: Answers = {}
        self._open: dict[int, tuple[socket.socket, bytearray]] = {}
        for rank, path in paths.items():
            with contextlib.suppress(OSError):
                connection = watching.dial(path, 0)
                self._open[rank] = connection, bytearray()
                connection.send(question.encode() + b"\n")
                loop.on_readable(connection.fileno(), functools.partial(self._read, rank))
        self._timer = loop.call_later(RANK_LIMIT_S if self._open else 0.0, self._end)

    def _read(self, rank: int) -> None:
        connection, data = self._open[rank]
        try:
            piece = connection.recv(_READ_BYTES)
        except OSError:
            piece = b""
        data += piece
        if piece:
            return
        self._close(rank)
        with contextlib.suppress(ValueError):
            self._answers[str(rank)] = json.loads(data)
        if not self._open:
            self._timer.cancel()
            self._done(self._answers)

    def _close(self, rank: int) -> None:
        connection, _ = self._open.pop(rank)
        self._loop.forget(connection.fileno())
        connection.close()

    def _end(self) -> None:
        for rank in list(self._open):
            self._answers[str(rank)] = {"silent": f"it has not answered for {RANK_LIMIT_S:g} s"}
            self._close(rank)
        self._done(self._answers)


class Asked(Protocol):
    """What a host is asked through, be it here or far away."""

    def ask(self, question: str, done: Callable[[Answers], None]) -> None:
        """Ask its ranks; `done` may never be called, when the host is lost."""


class HostInquiry:
    """Ask the ranks of several hosts, and call `done` with all answers."""

    def __init__(self, loop: Loop, hosts: list[Asked], question: str, done: Callable[[Answers], None]) -> None:
        self._done: Callable[[Answers], None] | None = done
        self._answers: Answers = {}
        self._missing = len(hosts)
        self._timer = loop.call_later(HOST_LIMIT_S if hosts else 0.0, self._end)
        for host in hosts:
            host.ask(question, self._take)

    def _take(self, answers: Answers) -> None:
        self._answers.update(answers)
        self._missing -= 1
        if self._missing == 0:
            self._timer.cancel()
            self._end()

    def _end(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self._answers)


class Door:
    """Where the commands of this user ask a launcher about its job.

    Args:
        loop: Calls back.
        job: The job's name.
        about: What is told besides what the ranks answer.
        ask: Asks all ranks.
        order: Does what an order says, and returns what to say; it may raise `watching.OrderError`.

    Raises:
        FileExistsError: The launcher of another job of this name answers there.
    """

    def __init__(
        self,
        loop: Loop,
        job: str,
        about: dict[str, Any],
        ask: Callable[[str, Callable[[Answers], None]], None],
        order: Callable[[str], str],
    ) -> None:
        self._loop = loop
        self._about = about
        self._ask = ask
        self._order = order
        folder = watching.folder_of(job)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._path = folder / watching.LAUNCHER
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            watching.dial(self._path, 0).close()
            raise FileExistsError(f"there is a job {job!r} already: give this one another name by --rdzv-id")
        self._listener = watching.listen(self._path)
        self._listener.setblocking(False)
        loop.on_readable(self._listener.fileno(), self._accept)

    @property
    def folder(self) -> str:
        """What is to be removed with the launcher."""
        return os.fspath(self._path.parent)

    def close(self) -> None:
        """Let nobody in any more."""
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
            self._path.parent.rmdir()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if not watching.is_own(connection):
                connection.close()
                return
            connection.setblocking(False)
            self._loop.on_readable(connection.fileno(), functools.partial(self._question, connection))

    def _question(self, connection: socket.socket) -> None:
        self._loop.forget(connection.fileno())
        try:
            question = connection.recv(watching.MAX_QUESTION_BYTES).decode().strip()
        except (OSError, ValueError):
            question = ""
        if question in watching.QUESTIONS:
            self._ask(question, lambda answers: self._answer(connection, {"about": self._about, "ranks": answers}))
        elif question.split(" ")[0] in watching.ORDERS:
            try:
                self._answer(connection, {"said": self._order(question)})
            except watching.OrderError as error:
                self._answer(connection, {"refused": str(error)})
        else:
            connection.close()

    def _answer(self, connection: socket.socket, answer: dict[str, Any]) -> None:
        data = bytearray(json.dumps(answer).encode())
        self._loop.on_writable(connection.fileno(), functools.partial(self._send, connection, data))

    def _send(self, connection: socket.socket, data: bytearray) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                del data[: connection.send(data)]
            except BlockingIOError:
                raise
            except OSError:  # whoever asked has gone
                data.clear()
        if not data:
            self._loop.forget(connection.fileno())
            connection.close()
