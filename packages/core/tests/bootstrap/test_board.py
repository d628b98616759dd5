"""A board: what guests post, who may, and when it goes."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from ringcore import BootstrapError
from ringcore.bootstrap.auth import BOARD, Hello, authenticate
from ringcore.bootstrap.board import Board, Guest
from ringcore.bootstrap.contacts import RANK, encode, headers
from ringcore.bootstrap.sockets import dial

KEY = os.urandom(32)
LIMIT_S = 60.0


@pytest.fixture
def board() -> Iterator[Board]:
    with Board(KEY) as board:
        yield board


def guest(board: Board, key: bytes = KEY) -> Guest:
    return Guest(board.address, key, LIMIT_S)


def test_what_is_posted_stays_as_long_as_its_guest(board: Board) -> None:
    with guest(board) as watcher:
        with guest(board) as other:
            other.post("a/own", "1")
            other.post("a/lasting", "2", lasting=True)
            other.post("a/withdrawn", "3")
            other.withdraw("a/withdrawn")
            other.post("b", "4")
            there = watcher.watch("a/", lambda posted: len(posted) == 2, LIMIT_S)
            assert there == {"a/own": "1", "a/lasting": "2"}
        assert watcher.watch("a/", lambda posted: len(posted) == 1, LIMIT_S) == {"a/lasting": "2"}


def test_a_watch_ends_when_another_guest_posts(board: Board) -> None:
    found: list[dict[str, str]] = []

    def watch() -> None:
        with guest(board) as watcher:
            watcher.post("watching")
            found.append(watcher.watch("a", lambda posted: "a" in posted, LIMIT_S))

    thread = threading.Thread(target=watch)
    thread.start()
    with guest(board) as other:
        assert other.watch("watching", bool, LIMIT_S)
        other.post("a", "here")
        thread.join(LIMIT_S)
    assert found == [{"a": "here"}]


def test_a_watch_gives_what_is_there_at_its_limit(board: Board) -> None:
    with guest(board) as watcher:
        watcher.post("a", "1")
        assert watcher.watch("a", lambda posted: len(posted) == 2, 0.0) == {"a": "1"}


def test_a_name_is_one_guests(board: Board) -> None:
    with guest(board) as first, guest(board) as second:
        first.post("a", "there")
        with pytest.raises(BootstrapError, match=r"'a' is posted already, as 'there': is it started twice\?"):
            second.post("a")
        with pytest.raises(BootstrapError, match="'a' cannot be withdrawn: this guest has not posted it"):
            second.withdraw("a")
        second.post("b")


def test_another_key_is_refused(board: Board) -> None:
    with pytest.raises(BootstrapError, match="does not know this job's key"):
        guest(board, os.urandom(32))
    guest(board).close()


@pytest.mark.parametrize(
    ("message", "seal"),
    [
        pytest.param({"post": "a", "value": "", "lasting": False}, b"rank1", id="replayed"),
        pytest.param({"post": "a"}, b"rank0", id="no request"),
        pytest.param(["post"], b"rank0", id="no object"),
    ],
)
def test_what_no_guest_sends_ends_its_connection_alone(board: Board, message: dict[str, object], seal: bytes) -> None:
    deadline = time.monotonic() + LIMIT_S
    with guest(board) as other, dial(board.address, deadline) as connection:
        secret = authenticate(connection, KEY, Hello(BOARD, 0, 0, 0), deadline)
        data = encode(message)
        connection.sendall(headers(data, seal, [secret])[0] + data)
        assert RANK == b"rank"
        connection.settimeout(LIMIT_S)
        assert connection.recv(1) == b""
        assert other.watch("a", bool, 0.0) == {}


def test_a_board_that_closes_ends_its_guests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringcore.bootstrap.board._LEAVE_S", 0.0)
    board = Board(KEY)
    with guest(board) as left:
        left.post("a")
        board.close()
        with pytest.raises(BootstrapError):
            left.post("b")
    host, _, port = board.address.removeprefix("tcp:").rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), LIMIT_S)


def test_a_board_closes_though_a_guest_is_never_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_LEAVE_S", "_END_S"):
        monkeypatch.setattr(f"ringcore.bootstrap.board.{limit}", 0.1)
    asked, answers = threading.Event(), threading.Event()

    def answer(*_: object) -> dict[str, object]:
        asked.set()
        answers.wait(LIMIT_S)
        return {}

    monkeypatch.setattr(Board, "_answer", answer)
    board = Board(KEY)

    def ask(waiting: Guest) -> None:
        with contextlib.suppress(BootstrapError):
            waiting.post("a")

    closing = threading.Thread(target=board.close)
    with guest(board) as waiting:
        asking = threading.Thread(target=ask, args=(waiting,))
        asking.start()
        assert asked.wait(LIMIT_S)
        closing.start()
        closing.join(LIMIT_S / 2)
        ended = not closing.is_alive()
        answers.set()
        asking.join(LIMIT_S)
        closing.join(LIMIT_S)
    board._thread.join(LIMIT_S)
    assert ended
