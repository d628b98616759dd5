"""Accepts connections from anybody, and hands on those of ranks of this job."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ringcore._errors import BootstrapError
from ringcore.bootstrap.auth import Acceptance, Hello, Key
from ringcore.environment.private_folder import peer_uid

_log = logging.getLogger("ringcore")

# Connections that have not proved the key yet. When there are more, the one goes that has said nothing for longest: a
# rank speaks at once, and dials again if it had to go.
MAX_PENDING = 256
HANDSHAKE_LIMIT_S = 5.0
# Accepted one after the other before those are looked at that have said more.
_MOST_AT_ONCE = 64
# Addresses of which a refusal is logged, and which are kept for that: a network of IPv6 has more than fit into memory.
_MOST_LOGGED = 256


@dataclass
class _Pending:
    acceptance: Acceptance
    deadline: float
    address: str


class Acceptor:
    """Authenticates what connects to some listening sockets. Register it with a selector and call `service`.

    On Unix sockets the kernel says who dials: only processes of this user come as far as to prove anything.

    Args:
        listeners: Listening sockets; closed by `close`.
        key: The job's key.
        accepted: Takes each authenticated connection, non-blocking, what it is for, and the secret of its two ends.
        gift: Sent to whoever connects, before anything else; for Unix sockets only.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        key: Key,
        accepted: Callable[[socket.socket, Hello, bytes], None],
        gift: Key = b"",
    ) -> None:
        self._key = key
        self._accepted = accepted
        self._gift = gift
        self._listeners = list(listeners)
        # In the order in which they came.
        self._silent: OrderedDict[socket.socket, _Pending] = OrderedDict()
        self._talking: OrderedDict[socket.socket, _Pending] = OrderedDict()
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
                self._accept_waiting(ready)
            elif ready in self._silent or ready in self._talking:
                self._read(ready)  # type: ignore[arg-type]
        now = time.monotonic()
        for waiting in (self._silent, self._talking):
            while waiting and now > next(iter(waiting.values())).deadline:
                self._refuse(next(iter(waiting)), "it did not finish the handshake in time")

    @property
    def refused(self) -> list[str]:
        """The addresses of those who were; of many some."""
        return sorted(self._logged)

    def stop_listening(self, listener: socket.socket) -> None:
        """Close one of the listeners."""
        self._listeners.remove(listener)
        self._selector.unregister(listener)
        listener.close()

    def close(self) -> None:
        """Close the listeners and everything unauthenticated."""
        for connection in [*self._silent, *self._talking, *self._listeners]:
            connection.close()
        self._silent.clear()
        self._talking.clear()
        self._selector.close()

    def _accept_waiting(self, listener: socket.socket) -> None:
        for _ in range(_MOST_AT_ONCE):
            if not self._accept(listener):
                return

    def _accept(self, listener: socket.socket) -> bool:
        """False where nobody waits any more."""
        try:
            connection, address = listener.accept()
        except (ConnectionAbortedError, InterruptedError):
            return True
        except BlockingIOError:
            return False
        except OSError as error:  # out of descriptors: strangers make room
            if not self._silent and not self._talking:
                raise BootstrapError(
                    f"cannot accept a connection: {error}; raise the limit of open files (ulimit -n)"
                ) from error
            self._make_room()
            return True
        local = connection.family == socket.AF_UNIX
        if not local:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if local and peer_uid(connection) != os.getuid():
            connection.close()
            self._log_refusal("a local socket", f"it belongs to user {peer_uid(connection)}")
            return True
        connection.setblocking(False)
        if len(self._silent) + len(self._talking) >= MAX_PENDING:
            self._make_room()
        text = "a local socket" if local else str(address[0])
        self._silent[connection] = _Pending(Acceptance(self._key), time.monotonic() + HANDSHAKE_LIMIT_S, text)
        self._selector.register(connection, selectors.EVENT_READ)
        self._greet(connection)
        return True

    def _greet(self, connection: socket.socket) -> None:
        try:
            if self._gift:
                connection.send(self._gift)
        except OSError as error:
            self._refuse(connection, str(error))
            return
        self._read(connection)  # A rank's hello is often there already.

    def _read(self, connection: socket.socket) -> None:
        pending = self._silent.get(connection) or self._talking[connection]
        try:
            data = connection.recv(pending.acceptance.wanted_bytes())
            if not data:
                raise BootstrapError("it closed the connection")
            if connection in self._silent:
                self._talking[connection] = self._silent.pop(connection)
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
            del self._talking[connection]
            self._selector.unregister(connection)
            self._accepted(connection, pending.acceptance.hello, pending.acceptance.secret)

    def _make_room(self) -> None:
        self._refuse(next(iter(self._silent or self._talking)), "too many connections wait to be authenticated")

    def _refuse(self, connection: socket.socket, why: str) -> None:
        pending = self._silent.pop(connection, None) or self._talking.pop(connection)
        self._selector.unregister(connection)
        connection.close()
        self._log_refusal(pending.address, why)

    def _log_refusal(self, address: str, why: str) -> None:
        if address not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(address)
            _log.warning("refused a connection from %s: %s (logged once for this address)", address, why)
