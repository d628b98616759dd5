"""Accepts connections from anybody, and hands on those of ranks of this job."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ringcore._errors import BootstrapError
from ringcore.bootstrap.auth import Acceptance, Hello

_log = logging.getLogger("ringcore")

# Connections that have not proved the key yet: the oldest goes when there are more.
MAX_PENDING = 64
HANDSHAKE_LIMIT_S = 5.0


@dataclass
class _Pending:
    acceptance: Acceptance
    deadline: float
    address: str


class Acceptor:
    """Authenticates what connects to some listening sockets. Register it with a selector and call `service`.

    Args:
        listeners: Listening sockets; closed by `close`.
        key: The job's key.
        accepted: Takes each authenticated connection, non-blocking, and what it is for.
        welcome: Looks at each new connection before anything else; raises BootstrapError to refuse it.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        key: bytes,
        accepted: Callable[[socket.socket, Hello], None],
        welcome: Callable[[socket.socket], None] | None = None,
    ) -> None:
        self._key = key
        self._accepted = accepted
        self._welcome = welcome
        self._listeners = list(listeners)
        self._pending: OrderedDict[socket.socket, _Pending] = OrderedDict()
        self._selector = selectors.DefaultSelector()
        self._logged: set[str] = set()
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Readable when `service` has something to do."""
        return self._selector.fileno()

    def service(self, limit_s: float) -> None:
        """Wait at most `limit_s` for something to happen, and deal with it."""
        for key, _ in self._selector.select(limit_s):
            ready = key.fileobj
            if ready in self._listeners:
                self._accept(ready)
            elif ready in self._pending:
                self._read(ready)  # type: ignore[arg-type]
        now = time.monotonic()
        for connection, pending in list(self._pending.items()):
            if now > pending.deadline:
                self._refuse(connection, "it did not finish the handshake in time")

    def close(self) -> None:
        """Close the listeners and everything unauthenticated."""
        for connection in [*self._pending, *self._listeners]:
            connection.close()
        self._pending.clear()
        self._selector.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError as error:  # out of descriptors: strangers make room
            if not self._pending:
                raise BootstrapError(
                    f"cannot accept a connection: {error}; raise the limit of open files (ulimit -n)"
                ) from error
            self._refuse(next(iter(self._pending)), "room is needed")
            return
        connection.setblocking(False)
        if len(self._pending) >= MAX_PENDING:
            self._refuse(next(iter(self._pending)), "too many connections wait to be authenticated")
        text = str(address[0]) if isinstance(address, tuple) else "a local socket"
        self._pending[connection] = _Pending(Acceptance(self._key), time.monotonic() + HANDSHAKE_LIMIT_S, text)
        self._selector.register(connection, selectors.EVENT_READ)
        if self._welcome is not None:
            try:
                self._welcome(connection)
            except (OSError, BootstrapError) as error:
                self._refuse(connection, str(error))

    def _read(self, connection: socket.socket) -> None:
        pending = self._pending[connection]
        try:
            data = connection.recv(pending.acceptance.wanted_bytes())
            if not data:
                raise BootstrapError("it closed the connection")
            answer = pending.acceptance.feed(data)
            # A fresh connection has room for these 64 bytes; one that has not is no rank.
            if answer and connection.send(answer) != len(answer):
                raise BootstrapError("it does not read")
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, BootstrapError) as error:
            self._refuse(connection, str(error))
            return
        if pending.acceptance.hello is not None:
            del self._pending[connection]
            self._selector.unregister(connection)
            self._accepted(connection, pending.acceptance.hello)

    def _refuse(self, connection: socket.socket, why: str) -> None:
        pending = self._pending.pop(connection)
        self._selector.unregister(connection)
        connection.close()
        if pending.address not in self._logged:
            self._logged.add(pending.address)
            _log.warning("refused a connection from %s: %s (logged once for this address)", pending.address, why)
