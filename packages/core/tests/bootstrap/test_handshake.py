"""Who does not know the job's key is refused, whatever they send; who knows it gets in, whatever else knocks."""

from __future__ import annotations

import hmac
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

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
    TurnedAwayError,
    authenticate,
    receive_exactly,
    until_let_in,
)
from ringcore.bootstrap.sockets import listen_tcp, listen_unix

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
        self.secrets: list[bytes] = []
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._acceptor = Acceptor([self.listener], KEY, self._accepted)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _accepted(self, connection: socket.socket, hello: Hello, secret: bytes) -> None:
        connection.close()
        with self._news:
            self.greeted.append(hello)
            self.secrets.append(secret)
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


def test_both_ends_of_a_connection_have_a_secret_that_no_other_connection_has(door: Door) -> None:
    hellos = [HELLO, HELLO, replace(HELLO, encrypted=True)]
    mine = []
    for count, hello in enumerate(hellos, 1):
        with door.dial() as connection:
            mine.append(authenticate(connection, KEY, hello, soon()))
            assert door.wait_greeted(count)
    assert door.greeted == hellos
    assert door.secrets == mine
    assert len(set(mine)) == 3
    assert {len(secret) for secret in mine} == {32}


def test_nobody_in_between_talks_the_ends_out_of_encryption(door: Door) -> None:
    """What the hello says is in both proofs: a changed one fits neither."""
    greeting = bytearray(replace(HELLO, encrypted=True).pack() + bytes(32))
    flag = next(i for i, (a, b) in enumerate(zip(greeting, HELLO.pack(), strict=False)) if a != b)
    with door.dial() as connection:
        changed = bytearray(greeting)
        changed[flag] = 0
        connection.sendall(changed)
        answer = receive_exactly(connection, 64, soon())
        expected = hmac.digest(KEY, b"acceptor" + bytes(greeting) + answer[:32], "sha256")
        assert answer[32:] != expected  # the dialler, which knows what it said, stops here
        connection.sendall(hmac.digest(KEY, b"dialler" + bytes(greeting) + answer[:32], "sha256"))
        assert is_closed(connection)
    assert door.greeted == []


def test_a_dialler_finds_out_that_the_acceptor_has_another_key(door: Door) -> None:
    with door.dial() as connection, pytest.raises(BootstrapError, match="does not know this job's key"):
        authenticate(connection, OTHER_KEY, HELLO, soon())
    assert door.greeted == []


def greet(connection: socket.socket) -> tuple[bytes, bytes]:
    """A hello, and the acceptor's answer to it."""
    greeting = HELLO.pack() + os.urandom(32)
    connection.sendall(greeting)
    return greeting, receive_exactly(connection, 64, soon())


def proof_of(greeting: bytes) -> bytes:
    """Of somebody with another key."""
    return Acceptance(OTHER_KEY).feed(greeting)[32:]


def invented(connection: socket.socket) -> None:
    greet(connection)
    connection.sendall(os.urandom(32))


def reflected(connection: socket.socket) -> None:
    _, answer = greet(connection)
    connection.sendall(answer[32:])  # the acceptor's own proof


def made_with_another_key(connection: socket.socket) -> None:
    greeting, _ = greet(connection)
    connection.sendall(proof_of(greeting))


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
    with pytest.raises(BootstrapError, match="speaks version 77 of the handshake, this rank 3"):
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


def test_who_has_spoken_stays_when_the_silent_have_to_go(door: Door) -> None:
    with door.dial() as connection:
        greeting, _ = greet(connection)
        silent = [door.dial() for _ in range(MAX_PENDING + 10)]
        assert all(is_closed(stranger) for stranger in silent[:10])
        connection.sendall(proof_of(greeting))
        assert connection.recv(1) == b"" and door.greeted == []  # A wrong proof: it was still read.
    for stranger in silent:
        stranger.close()


def test_who_is_turned_away_dials_again() -> None:
    turned_away = 3

    def serve(listener: socket.socket) -> None:
        for _ in range(turned_away):
            listener.accept()[0].close()
        acceptor = Acceptor([listener], KEY, lambda connection, hello, _: greeted.append((connection, hello)))
        deadline = soon()
        while not greeted and time.monotonic() < deadline:
            acceptor.service(0.02)
        acceptor.close()

    greeted: list[tuple[socket.socket, Hello]] = []
    dialled = 0
    listener = listen_tcp("127.0.0.1")
    address = listener.getsockname()
    thread = threading.Thread(target=serve, args=(listener,))
    thread.start()

    def dial() -> socket.socket:
        nonlocal dialled
        dialled += 1
        connection = socket.create_connection(address, timeout=LIMIT_S)
        try:
            authenticate(connection, KEY, HELLO, soon())
        except TurnedAwayError:
            connection.close()
            raise
        return connection

    with until_let_in(dial, soon()):
        thread.join()
    assert dialled == turned_away + 1
    assert [hello for _, hello in greeted] == [HELLO]
    greeted[0][0].close()


def test_who_is_always_turned_away_hears_why_at_the_deadline() -> None:
    def dial() -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        with ours:
            authenticate(ours, KEY, HELLO, soon())

    with pytest.raises(TurnedAwayError, match="too many strangers connect to it, or it is no rank of this version"):
        until_let_in(dial, time.monotonic() + 0.1)


def test_another_user_gets_nothing_from_a_unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor_module, "peer_uid", lambda _: os.getuid() + 1)
    path = str(tmp_path / "socket")
    acceptor = Acceptor([listen_unix(path)], KEY, lambda *_: pytest.fail("let in"), gift=KEY)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LIMIT_S)
        connection.connect(path)
        acceptor.service(LIMIT_S)
        assert connection.recv(4096) == b""
    acceptor.close()


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
