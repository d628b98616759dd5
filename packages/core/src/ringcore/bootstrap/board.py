"""A board for processes of several jobs that share a key: each posts texts under names, which the others wait for.

What a process posts is there as long as its connection, unless it is lasting. A message is length, seal and JSON, as
where ranks meet; the seal also covers which message of its connection it is.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ringcore._errors import BootstrapError
from ringcore.bootstrap.acceptor import Acceptor
from ringcore.bootstrap.auth import BOARD, Hello, authenticate, receive_exactly, send_all, until_let_in
from ringcore.bootstrap.contacts import HEADER, RANK, SERVER, encode, headers, is_genuine
from ringcore.bootstrap.sockets import dial, format_address, listen_tcp

_MAX_BYTES = 1 << 20
# A watch is answered after so long, also when nothing has changed: a guest that is gone is noticed then.
_WATCH_S = 1.0
# A message that has begun comes, or is taken, within this.
_MESSAGE_S = 10.0
# A board that is closed gives those who are there so long to leave.
_LEAVE_S = 5.0


class _Channel:
    """One end of an authenticated connection: messages in turn, numbered from 0 in each direction."""

    def __init__(self, connection: socket.socket, secret: bytes, own: bytes, other: bytes) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.connection = connection
        self._secret = secret
        self._own, self._other = own, other
        self._sent = self._received = 0

    def send(self, message: dict[str, Any]) -> None:
        data = encode(message)
        if len(data) > _MAX_BYTES:
            raise BootstrapError(f"a message of {len(data)} bytes is too long for a board: {_MAX_BYTES} are allowed")
        sender = self._own + str(self._sent).encode()
        self._sent += 1
        send_all(self.connection, headers(data, sender, [self._secret])[0] + data, time.monotonic() + _MESSAGE_S)

    def receive(self, limit_s: float = _MESSAGE_S) -> Any:
        deadline = time.monotonic() + limit_s
        header = receive_exactly(self.connection, HEADER.size, deadline)
        length, _ = HEADER.unpack(header)
        if length > _MAX_BYTES:
            raise BootstrapError(f"a message of {length} bytes came from a board, or to it: {_MAX_BYTES} are allowed")
        data = receive_exactly(self.connection, length, deadline)
        sender = self._other + str(self._received).encode()
        self._received += 1
        if not is_genuine(header, data, sender, self._secret):
            raise BootstrapError("what came from a board, or to it, was changed on its way")
        return json.loads(data)


class Board:
    """Serves a board on threads of its own until it is closed.

    Args:
        key: What guests have to know, 32 bytes.
        host: This host's address that they reach.

    Raises:
        BootstrapError: The address cannot be listened on.
    """

    def __init__(self, key: bytes, *, host: str = "127.0.0.1") -> None:
        listener = listen_tcp(host)
        self.address = f"tcp:{format_address(listener.getsockname())}"
        self._acceptor = Acceptor([listener], key, self._accepted)
        self._changed = threading.Condition()  # Guards: _posted, _version, _guests.
        self._posted: dict[str, tuple[str, _Channel | None]] = {}
        self._version = 0
        self._guests: dict[_Channel, threading.Thread] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="ringcore-board", daemon=True)
        self._thread.start()

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let nobody in any more, and end the connections of guests that do not leave within a few seconds."""
        self._closed = True
        self._thread.join()
        with self._changed:
            self._changed.wait_for(lambda: not self._guests, _LEAVE_S)
            left = dict(self._guests)
        for channel in left:
            with contextlib.suppress(OSError):
                channel.connection.shutdown(socket.SHUT_RDWR)
        for thread in left.values():
            thread.join()

    def _accept(self) -> None:
        try:
            while not self._closed:
                self._acceptor.service(0.1)
        finally:
            self._acceptor.close()

    def _accepted(self, connection: socket.socket, hello: Hello, secret: bytes) -> None:
        if hello.purpose != BOARD:
            connection.close()
            return
        channel = _Channel(connection, secret, SERVER, RANK)
        thread = threading.Thread(target=self._serve, args=(channel,), name="ringcore-board-guest", daemon=True)
        with self._changed:
            self._guests[channel] = thread
        thread.start()

    def _serve(self, guest: _Channel) -> None:
        requests = select.poll()
        requests.register(guest.connection, select.POLLIN)
        with guest.connection, contextlib.suppress(BootstrapError, OSError, ValueError, RecursionError):
            try:
                while requests.poll():
                    guest.send(self._answer(guest, guest.receive()))
            finally:
                self._forget(guest)

    def _answer(self, guest: _Channel, request: Any) -> dict[str, Any]:
        match request:
            case {"post": str(name), "value": str(value), "lasting": bool(lasting)}:
                return self._post(guest, name, value, lasting)
            case {"withdraw": str(name)}:
                return self._withdraw(guest, name)
            case {"watch": str(prefix), "seen": int(seen)}:
                return self._look(prefix, seen)
        raise BootstrapError("a guest of a board sent what is no request")

    def _post(self, guest: _Channel, name: str, value: str, lasting: bool) -> dict[str, Any]:
        with self._changed:
            if not lasting and name in self._posted:
                return {"error": f"{name!r} is posted already, as {self._posted[name][0]!r}: is it started twice?"}
            self._posted[name] = value, None if lasting else guest
            self._change()
        return {}

    def _withdraw(self, guest: _Channel, name: str) -> dict[str, Any]:
        with self._changed:
            if self._posted.get(name, ("", None))[1] is not guest:
                return {"error": f"{name!r} cannot be withdrawn: this guest has not posted it"}
            del self._posted[name]
            self._change()
        return {}

    def _look(self, prefix: str, seen: int) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen, _WATCH_S)
            posted = {name: value for name, (value, _) in self._posted.items() if name.startswith(prefix)}
            return {"version": self._version, "posted": posted}

    def _forget(self, guest: _Channel) -> None:
        with self._changed:
            del self._guests[guest]
            self._posted = {name: entry for name, entry in self._posted.items() if entry[1] is not guest}
            self._change()

    def _change(self) -> None:
        self._version += 1
        self._changed.notify_all()


class Guest:
    """A process's connection to a board; what it has posted goes with it. For one thread.

    Args:
        address: Of the board.
        key: Its key.
        limit_s: It has to answer within this.

    Raises:
        BootstrapError: It does not answer, or does not know the key.
    """

    def __init__(self, address: str, key: bytes, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s

        def enter() -> _Channel:
            connection = dial(address, deadline)
            try:
                return _Channel(
                    connection, authenticate(connection, key, Hello(BOARD, 0, 0, 0), deadline), RANK, SERVER
                )
            except BaseException:
                connection.close()
                raise

        self._channel = until_let_in(enter, deadline)

    def __enter__(self) -> Guest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave; what is not lasting is taken off the board."""
        self._channel.connection.close()

    def post(self, name: str, value: str = "", *, lasting: bool = False) -> None:
        """Put a text on the board.

        Args:
            name: What others watch for.
            value: The text.
            lasting: It stays there when this guest has left.

        Raises:
            BootstrapError: The name is taken, or the board is gone.
        """
        self._ask({"post": name, "value": value, "lasting": lasting})

    def withdraw(self, name: str) -> None:
        """Take what this guest has posted off the board.

        Raises:
            BootstrapError: It is not there, or is another one's, or the board is gone.
        """
        self._ask({"withdraw": name})

    def watch(
        self, prefix: str, until: Callable[[dict[str, str]], bool], limit_s: float | None = None
    ) -> dict[str, str]:
        """Wait until what is posted under some names is as it should be.

        Args:
            prefix: How these names begin.
            until: Given the texts by name, says whether they are.
            limit_s: How long at most; `None`: as long as the board is there.

        Returns:
            The texts by name, as they are at last, at the limit too.

        Raises:
            BootstrapError: The board is gone.
        """
        deadline = None if limit_s is None else time.monotonic() + limit_s
        seen = -1
        while True:
            answer = self._ask({"watch": prefix, "seen": seen})
            seen, posted = answer["version"], answer["posted"]
            if until(posted) or (deadline is not None and time.monotonic() > deadline):
                return dict(posted)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._channel.send(request)
        answer: dict[str, Any] = self._channel.receive(_WATCH_S + _MESSAGE_S)
        if "error" in answer:
            raise BootstrapError(answer["error"])
        return answer
