"""Who does not know the job's key is refused, whatever they send; who knows it gets in, whatever else knocks."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from ringcore._errors import BootstrapError
from ringcore.bootstrap import acceptor as acceptor_module
from ringcore.bootstrap.acceptor import MAX_PENDING, Acceptor
from ringcore.bootstrap.auth import (
    HELLO_BYTES,
    MAX_UNAUTHENTICATED_BYTES,
    MESH,
    Acceptance,
    Hello,
    authenticate,
    receive_exactly,
)
from ringcore.bootstrap.rendezvous import listen_tcp

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
HELLO = Hello(MESH, epoch=3, from_rank=0, to_rank=1, lane=2)
LIMIT_S = 20.0


def soon() -> float:
    return time.monotonic() + LIMIT_S


class Door:
    """An acceptor on a thread of its own."""

    def __init__(self) -> None:
        self.listener = listen_tcp("127.0.0.1")
        self.address = self.listener.getsockname()
        self.greeted: list[Hello] = []
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._acceptor = Acceptor([self.listener], KEY, self._accepted)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _accepted(self, connection: socket.socket, hello: Hello) -> None:
        connection.close()
        with self._news:
            self.greeted.append(hello)
            self._news.notify_all()

    def _serve(self) -> None:
        while not self._stop.is_set():
            self._acceptor.service(0.02)

    def wait_greeted(self, count: int = 1) -> bool:
        with self._news:
            return self._news.wait_for(lambda: len(self.greeted) >= count, LIMIT_S)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._acceptor.close()

    def dial(self) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=LIMIT_S)
        connection.settimeout(LIMIT_S)
        return connection


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door()
    yield opened
    opened.close()


def is_closed(connection: socket.socket) -> bool:
    """Waits for the other end to hang up."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_rank_with_the_key_gets_in(door: Door) -> None:
    with door.dial() as connection:
        authenticate(connection, KEY, HELLO, soon())
        assert door.wait_greeted()
    assert door.greeted == [HELLO]


def test_a_dialler_finds_out_that_the_acceptor_has_another_key(door: Door) -> None:
    with door.dial() as connection, pytest.raises(BootstrapError, match="does not know this job's key"):
        authenticate(connection, OTHER_KEY, HELLO, soon())
    assert door.greeted == []


def greet(connection: socket.socket) -> tuple[bytes, bytes]:
    """A hello, and the acceptor's answer to it."""
    greeting = HELLO.pack() + os.urandom(32)
    connection.sendall(greeting)
    return greeting, receive_exactly(connection, 64, soon())


def invented(connection: socket.socket) -> None:
    greet(connection)
    connection.sendall(os.urandom(32))


def reflected(connection: socket.socket) -> None:
    _, answer = greet(connection)
    connection.sendall(answer[32:])  # the acceptor's own proof


def made_with_another_key(connection: socket.socket) -> None:
    greeting, answer = greet(connection)
    acceptance = Acceptance(OTHER_KEY)
    connection.sendall(acceptance.feed(greeting)[32:])
    del answer


@pytest.mark.parametrize("prove", [invented, reflected, made_with_another_key])
def test_a_wrong_proof_is_refused(door: Door, prove: Callable[[socket.socket], None]) -> None:
    with door.dial() as connection:
        prove(connection)
        assert is_closed(connection)
    assert door.greeted == []


class Recorder:
    """A socket that remembers what was sent through it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.sent = b""

    def sendall(self, data: bytes) -> None:
        self.sent += data
        self._connection.sendall(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


def test_a_replayed_handshake_is_refused(door: Door) -> None:
    with door.dial() as connection:
        recorder = Recorder(connection)
        authenticate(recorder, KEY, HELLO, soon())  # type: ignore[arg-type]
        assert door.wait_greeted()
    assert len(recorder.sent) == MAX_UNAUTHENTICATED_BYTES
    with door.dial() as connection:
        connection.sendall(recorder.sent[:HELLO_BYTES])
        receive_exactly(connection, 64, soon())
        connection.sendall(recorder.sent[HELLO_BYTES:])
        assert is_closed(connection)
    assert len(door.greeted) == 1


def test_two_dialled_acceptors_do_not_prove_each_other() -> None:
    """A stranger between two connections that passes each side's messages on as its own proves nothing."""
    first, second = Acceptance(KEY), Acceptance(KEY)
    greeting = HELLO.pack() + os.urandom(32)
    answer = first.feed(greeting)
    proof_of_second = second.feed(HELLO.pack() + answer[:32])[32:]
    with pytest.raises(BootstrapError, match="does not know the job's key"):
        first.feed(proof_of_second)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 500, os.urandom(500), b"ringcorf", b"ringcore" + b"\xff" * 60]
)
def test_garbage_is_refused(door: Door, data: bytes) -> None:
    with door.dial() as connection:
        connection.sendall(data)
        assert is_closed(connection)
    assert door.greeted == []


def test_another_version_of_the_handshake_is_named() -> None:
    greeting = bytearray(HELLO.pack() + os.urandom(32))
    greeting[8] = 77
    with pytest.raises(BootstrapError, match="speaks version 77 of the handshake, this rank 1"):
        Acceptance(KEY).feed(bytes(greeting))


def test_a_rank_whose_bytes_come_one_by_one_gets_in(door: Door) -> None:
    class Dribbling(Recorder):
        def sendall(self, data: bytes) -> None:
            for byte in data:
                super().sendall(bytes([byte]))

    with door.dial() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        authenticate(Dribbling(connection), KEY, HELLO, soon())  # type: ignore[arg-type]
        assert door.wait_greeted()


def test_who_never_finishes_is_dropped(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor_module, "HANDSHAKE_LIMIT_S", 0.05)
    with door.dial() as silent, door.dial() as halfway:
        halfway.sendall(HELLO.pack())
        assert is_closed(silent)
        assert is_closed(halfway)


def test_a_rank_gets_in_among_three_hundred_who_say_nothing(door: Door) -> None:
    silent = [door.dial() for _ in range(300)]
    with door.dial() as connection:
        authenticate(connection, KEY, HELLO, soon())
        assert door.wait_greeted()
    # The oldest had to go: no more than MAX_PENDING of them may hold descriptors here.
    for connection in silent[: 300 - MAX_PENDING]:
        assert is_closed(connection)
    for connection in silent:
        connection.close()


@contextmanager
def counted_warnings() -> Iterator[list[str]]:
    said: list[str] = []

    class Counter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Counter()
    logging.getLogger("ringcore").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("ringcore").removeHandler(handler)


def test_ten_thousand_strangers_leave_no_trace(door: Door) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with counted_warnings() as said:
        for number in range(10_000):
            with door.dial() as stranger:
                if number % 4 == 0:
                    stranger.sendall(b"\0" * 64)
                elif number % 4 == 1:
                    stranger.sendall(HELLO.pack() + bytes(32) + bytes(32))
                elif number % 4 == 2:
                    stranger.sendall(HELLO.pack()[:11])
        with door.dial() as connection:
            authenticate(connection, KEY, HELLO, soon())
            assert door.wait_greeted()
    assert len(said) == 1, said
    assert "refused a connection from 127.0.0.1" in said[0]
    assert len(os.listdir("/proc/self/fd")) <= descriptors + MAX_PENDING
