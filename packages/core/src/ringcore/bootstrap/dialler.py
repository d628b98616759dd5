"""Dials many addresses side by side, and proves the job's key at each of them."""

from __future__ import annotations

import errno
import heapq
import itertools
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ringcore._errors import BootstrapError
from ringcore.bootstrap.auth import Hello, Introduction, Key, pause_before_next

# Connections on their way at a time: as many as hide the time that the others take to answer, and so few that all ranks
# together leave each other's acceptors room.
_MOST_AT_ONCE = 32


@dataclass(eq=False)
class PendingConnection:
    """A connection to be made.

    Attributes:
        hello: What it is for.
        open: Returns a socket that has begun to connect, and does not block. Raises OSError where it cannot.
        connected: Takes the authenticated connection, and the secret of its two ends.
        refused: Nobody listens there, or the network does not lead there.
    """

    hello: Hello
    open: Callable[[], socket.socket]
    connected: Callable[[socket.socket, bytes], None]
    refused: Callable[[OSError], None]


@dataclass
class _Attempt:
    pending: PendingConnection
    introduction: Introduction
    greeted: bool = False


@dataclass
class Dialler:
    """Makes connections, each as often as it takes. Register it with a selector and call `service`.

    Args:
        key: The job's key.
    """

    key: Key
    _waiting: deque[PendingConnection] = field(default_factory=deque)
    # Those that were turned away, by the time at which they are dialled again.
    _later: list[tuple[float, int, PendingConnection]] = field(default_factory=list)
    _attempts: dict[socket.socket, _Attempt] = field(default_factory=dict)
    _selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    _numbers: Iterable[int] = field(default_factory=itertools.count)

    def fileno(self) -> int:
        """Readable when `service` has something to do, besides dialling again."""
        return self._selector.fileno()

    def dial(self, wanted: Iterable[PendingConnection]) -> None:
        """Begin with these, in their order."""
        self._waiting.extend(wanted)

    def dial_later(self, pending: PendingConnection) -> None:
        """Go on with this one after a moment."""
        self._again(pending)

    def unanswered(self) -> list[Hello]:
        """What has been dialled, or is to be, and was not let in yet."""
        wanted = [*(attempt.pending for attempt in self._attempts.values()), *self._waiting]
        return [pending.hello for pending in [*wanted, *(pending for _, _, pending in self._later)]]

    def service(self) -> float:
        """Go on with what can go on.

        Returns:
            The seconds after which it wants to be called again, whatever happens.

        Raises:
            BootstrapError: Somebody does not know the key.
        """
        for key, _ in self._selector.select(0):
            self._advance(key.fileobj)  # type: ignore[arg-type]
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            self._waiting.append(heapq.heappop(self._later)[2])
        while self._waiting and len(self._attempts) < _MOST_AT_ONCE:
            self._open(self._waiting.popleft())
        return max(0.0, self._later[0][0] - now) if self._later else 1.0

    def close(self) -> None:
        """Give up everything that is on its way."""
        for connection in self._attempts:
            connection.close()
        self._attempts.clear()
        self._waiting.clear()
        self._later.clear()
        self._selector.close()

    def _open(self, pending: PendingConnection) -> None:
        try:
            connection = pending.open()
        except BlockingIOError:  # a Unix socket whose queue is full
            self._again(pending)
        except OSError as error:
            pending.refused(error)
        else:
            self._attempts[connection] = _Attempt(pending, Introduction(self.key, pending.hello))
            self._selector.register(connection, selectors.EVENT_WRITE)

    def _again(self, pending: PendingConnection) -> None:
        heapq.heappush(self._later, (time.monotonic() + pause_before_next(), next(iter(self._numbers)), pending))

    def _advance(self, connection: socket.socket) -> None:
        attempt = self._attempts[connection]
        try:
            if not attempt.greeted:
                self._greet(connection, attempt)
                return
            data = connection.recv(attempt.introduction.wanted_bytes())
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
            answer = attempt.introduction.feed(data)
            if answer:
                connection.send(answer)  # A fresh connection has room for it.
        except (BlockingIOError, InterruptedError):
            return
        except BootstrapError:
            raise
        except OSError:
            self._drop(connection).close()
            self._again(attempt.pending)
            return
        if attempt.introduction.secret:
            attempt.pending.connected(self._drop(connection), attempt.introduction.secret)

    def _greet(self, connection: socket.socket, attempt: _Attempt) -> None:
        problem = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem != 0:
            self._drop(connection).close()
            attempt.pending.refused(OSError(problem, os.strerror(problem)))
            return
        connection.send(attempt.introduction.greeting)
        attempt.greeted = True
        self._selector.modify(connection, selectors.EVENT_READ)

    def _drop(self, connection: socket.socket) -> socket.socket:
        del self._attempts[connection]
        self._selector.unregister(connection)
        return connection
