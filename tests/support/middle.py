"""Somebody in the middle of connections over TCP: carries what goes over them, and may change it."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence

from ringcore.bootstrap.auth import MESH

_READ_BYTES = 1 << 16
# What a dialler says first; see `_HELLO` of ringcore.bootstrap.auth.
_HELLO = struct.Struct("<8sHHIIII?")
_ENCRYPTED_AT = _HELLO.size - 1
# Behind so many bytes of a connection no handshake is left in either direction.
_HANDSHAKE_BYTES = 4_000


@dataclasses.dataclass(eq=False)
class Way:
    """One direction of a connection.

    Attributes:
        target: In whose place it was accepted.
        from_dialler: Or to it.
        ranks: Of both ends, as the dialler says: the lower one first. Empty: it is no connection between ranks.
        carried: Bytes, up to now.
    """

    target: int
    from_dialler: bool
    ranks: tuple[int, ...] = ()
    carried: int = 0


# Takes what came, and says what goes on; None: the connection is cut there.
Tamper = Callable[[Way, bytes], "bytes | None"]


def carry(_: Way, data: bytes) -> bytes:
    """Change nothing."""
    return data


def strip_encryption(way: Way, data: bytes) -> bytes:
    """Have the acceptor believe that the dialler wants no encryption."""
    if not way.from_dialler or way.carried > _ENCRYPTED_AT:
        return data
    changed = bytearray(data)
    changed[_ENCRYPTED_AT] = 0
    return bytes(changed)


class Tampering:
    """One change to all that goes between ranks: where and how depends on the seed.

    Attributes:
        seed: The same seed and the same traffic make the same change.
        ranks: Between whom it was, once it was made; empty where they meet.
        in_data: Whether it was behind the handshakes of its connection.
    """

    KINDS = ("flip", "drop", "repeat", "reorder", "reverse", "insert", "cut")

    def __init__(self, seed: int, most: int) -> None:
        self._random = random.Random(seed)
        self._at = self._random.randrange(most)
        self._carried = 0
        self._lock = threading.Lock()  # Guards all of this object: each way has a thread.
        self.seed = seed
        self.kind = self._random.choice(self.KINDS)
        self.ranks: tuple[int, ...] | None = None
        self.in_data = False

    def __call__(self, way: Way, data: bytes) -> bytes | None:
        with self._lock:
            begin, self._carried = self._carried, self._carried + len(data)
            if not begin <= self._at < self._carried:
                return data
            at = self._at - begin
            changed = self._change(data[:at], data[at:])
            if changed != data:
                self.ranks = way.ranks
                self.in_data = way.carried + at >= _HANDSHAKE_BYTES
            return changed

    def _change(self, before: bytes, data: bytes) -> bytes | None:
        some = self._random.randint(1, min(len(data), 100))
        piece, rest = data[:some], data[some:]
        match self.kind:
            case "flip":
                return before + bytes([data[0] ^ self._random.randint(1, 255)]) + data[1:]
            case "drop":
                return before + rest
            case "repeat":
                return before + piece + piece + rest
            case "reorder":
                return before + rest + piece
            case "reverse":
                return before + piece[::-1] + rest
            case "insert":
                return before + self._random.randbytes(some) + data
            case _:
                return None

    def __str__(self) -> str:
        where = "in data" if self.in_data else "in a handshake"
        return f"seed {self.seed}: {self.kind} at byte {self._at} of all, {where} between {self.ranks}"


class Middle:
    """Listens in the place of others.

    Args:
        targets: The port of each of those, on loopback; asked at each connection.
        idle_s: Connections over which nothing goes in one of the directions for so long are cut.

    Attributes:
        ports: Where it listens for each.
        tamper: What it does to the bytes. Change it while nobody is connected.
        carried: Bytes of all connections.
        cut_idle: How many were, of those between ranks: where they meet they wait for the slowest of them.
    """

    def __init__(self, targets: Sequence[Callable[[], int]], idle_s: float | None = None) -> None:
        self.tamper: Tamper = carry
        self.carried = 0
        self.cut_idle = 0
        self._idle_s = idle_s
        self._open = 0
        self._changes = threading.Condition()  # Guards `_open`.
        self._targets = targets
        self._listeners = [socket.create_server(("127.0.0.1", 0), backlog=64) for _ in targets]
        self.ports = [listener.getsockname()[1] for listener in self._listeners]
        for number, listener in enumerate(self._listeners):
            threading.Thread(target=self._accept, args=(number, listener), daemon=True).start()

    def close(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def await_end(self, timeout_s: float = 20) -> None:
        """Until no connection is open: what is carried from now on is of those that come."""
        with self._changes:
            if not self._changes.wait_for(lambda: self._open == 0, timeout_s):
                raise AssertionError(f"{self._open} directions of connections are still open after {timeout_s} s")

    def _accept(self, number: int, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # It is closed in the end.
            while True:
                near, _ = listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._targets[number]()))
                except OSError:  # Nobody listens there.
                    near.close()
                    continue
                with self._changes:
                    self._open += 2
                ways = Way(number, from_dialler=True), Way(number, from_dialler=False)
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    end.settimeout(self._idle_s)
                for way, source, target in ((ways[0], near, far), (ways[1], far, near)):
                    threading.Thread(target=self._carry, args=(way, ways, source, target), daemon=True).start()

    def _receive(self, way: Way, source: socket.socket) -> bytes:
        try:
            return source.recv(_READ_BYTES)
        except TimeoutError:
            self.cut_idle += bool(way.ranks)
            return b""

    def _carry(self, way: Way, both: tuple[Way, Way], source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # One of the two has gone.
            while data := self._receive(way, source):
                if way.from_dialler and way.carried == 0 and len(data) >= _HELLO.size:
                    _, _, purpose, _, lower, higher, _, _ = _HELLO.unpack_from(data)
                    for each in both if purpose == MESH else ():
                        each.ranks = lower, higher
                changed = self.tamper(way, data)
                way.carried += len(data)
                self.carried += len(data)
                if changed is None:
                    break
                target.sendall(changed)
        # The end of one direction is the end of both: nobody here closes only half of a connection.
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        with self._changes:
            self._open -= 1
            self._changes.notify_all()


@contextlib.contextmanager
def middle(targets: Sequence[Callable[[], int]], idle_s: float | None = None) -> Iterator[Middle]:
    """One that is there for the block."""
    made = Middle(targets, idle_s)
    try:
        yield made
    finally:
        made.close()
