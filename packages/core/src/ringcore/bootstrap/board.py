"""A board for processes of several jobs that share a key: each posts texts under names, which the others wait for.

What a process posts is there as long as its connection, unless it is lasting.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ringcore._closing import Closing
from ringcore._errors import BootstrapError
from ringcore.bootstrap.acceptor import Acceptor
from ringcore.bootstrap.auth import BOARD, Hello, Key, authenticate, until_let_in
from ringcore.bootstrap.contacts import RANK, SERVER
from ringcore.bootstrap.sealed import MESSAGE_S, SealedConnection
from ringcore.bootstrap.sockets import dial, format_address, listen_tcp

# A watch is answered after so long, also when nothing has changed: a guest that is gone is noticed then.
_WATCH_S = 1.0
# A board that is closed gives those who are there so long to leave.
_LEAVE_S = 5.0
# And so long to its own threads to end: what is connected has been shut down.
_END_S = 5.0


class Board(Closing):
    """Serves a board on threads of its own until it is closed.

    Args:
        key: What guests have to know, 32 bytes.
        host: This host's address that they reach.

    Raises:
        BootstrapError: The address cannot be listened on.
    """

    def __init__(self, key: Key, *, host: str = "127.0.0.1") -> None:
        listener = listen_tcp(host)
        self.address = f"tcp:{format_address(listener.getsockname())}"
        self._acceptor = Acceptor([listener], key, self._accepted)
        self._changed = threading.Condition()  # Guards: _posted, _version, _guests.
        self._posted: dict[str, tuple[str, SealedConnection | None]] = {}
        self._version = 0
        self._guests: dict[SealedConnection, threading.Thread] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="ringcore-board", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more, and end the connections of guests that do not leave within a few seconds."""
        self._closed = True
        self._thread.join(_END_S)
        with self._changed:
            self._changed.wait_for(lambda: not self._guests, _LEAVE_S)
            left = dict(self._guests)
        for guest in left:
            with contextlib.suppress(OSError):
                guest.connection.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _END_S
        for thread in left.values():
            thread.join(max(0.0, deadline - time.monotonic()))

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
        guest = SealedConnection(connection, secret, SERVER, RANK)
        thread = threading.Thread(target=self._serve, args=(guest,), name="ringcore-board-guest", daemon=True)
        with self._changed:
            self._guests[guest] = thread
        thread.start()

    def _serve(self, guest: SealedConnection) -> None:
        requests = select.poll()
        requests.register(guest.connection, select.POLLIN)
        with guest.connection, contextlib.suppress(BootstrapError, OSError, ValueError, RecursionError):
            try:
                while requests.poll():
                    guest.send(self._answer(guest, guest.receive()))
            finally:
                self._forget(guest)

    def _answer(self, guest: SealedConnection, request: Any) -> dict[str, Any]:
        match request:
            case {"post": str(name), "value": str(value), "lasting": bool(lasting)}:
                return self._post(guest, name, value, lasting)
            case {"withdraw": str(name)}:
                return self._withdraw(guest, name)
            case {"watch": str(prefix), "seen": int(seen)}:
                return self._look(prefix, seen)
        raise BootstrapError("a guest of a board sent what is no request")

    def _post(self, guest: SealedConnection, name: str, value: str, lasting: bool) -> dict[str, Any]:
        with self._changed:
            if not lasting and name in self._posted:
                return {"error": f"{name!r} is posted already, as {self._posted[name][0]!r}: is it started twice?"}
            self._posted[name] = value, None if lasting else guest
            self._change()
        return {}

    def _withdraw(self, guest: SealedConnection, name: str) -> dict[str, Any]:
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

    def _forget(self, guest: SealedConnection) -> None:
        with self._changed:
            del self._guests[guest]
            self._posted = {name: entry for name, entry in self._posted.items() if entry[1] is not guest}
            self._change()

    def _change(self) -> None:
        self._version += 1
        self._changed.notify_all()


class Guest(Closing):
    """A process's connection to a board; what it has posted goes with it. For one thread.

    Args:
        address: Of the board.
        key: Its key.
        limit_s: It has to answer within this.

    Raises:
        BootstrapError: It does not answer, or does not know the key.
    """

    def __init__(self, address: str, key: Key, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s

        def enter() -> SealedConnection:
            connection = dial(address, deadline)
            try:
                return SealedConnection(
                    connection, authenticate(connection, key, Hello(BOARD, 0, 0, 0), deadline), RANK, SERVER
                )
            except BaseException:
                connection.close()
                raise

        self._connection = until_let_in(enter, deadline)

    def close(self) -> None:
        """Leave; what is not lasting is taken off the board."""
        self._connection.connection.close()

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
        self._connection.send(request)
        answer: dict[str, Any] = self._connection.receive(_WATCH_S + MESSAGE_S)
        if "error" in answer:
            raise BootstrapError(answer["error"])
        return answer
