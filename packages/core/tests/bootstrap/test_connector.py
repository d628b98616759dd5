"""Ranks connect side by side: whoever does not answer keeps nobody else waiting, and is named."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from ringcore._errors import BootstrapError
from ringcore.bootstrap.acceptor import MAX_PENDING
from ringcore.bootstrap.auth import MESH, Hello, authenticate
from ringcore.bootstrap.connector import Connector
from ringcore.bootstrap.paths import Endpoint, announce
from ringcore.environment.settings import Settings

KEY = bytes(range(32))
EPOCH = 7
LIMIT_S = 60.0
# So long a rank looks for one that does not come.
SOON_S = 1.5
SHARED, ASKED = 0xFFFF, 0xFFFE


class Ranks:
    """Some ranks of a job on threads of this process; the test itself is the others."""

    def __init__(self, size: int, *, shared: bool) -> None:
        self.size = size
        self.locals = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(size)]
        self.listeners = [socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(size)]
        self.segments = [os.memfd_create(f"rank{rank}") if shared else None for rank in range(size)]
        self.names = [f"ringcore-test-{secrets.token_hex(8)}" for _ in range(size)]
        for rank in range(size):
            self.locals[rank].bind(f"\0{self.names[rank]}")
            self.locals[rank].listen(1024)
        self.contacts = [self._contact(rank) for rank in range(size)]
        self.pool = ThreadPoolExecutor(size)
        self.connected = [threading.Event() for _ in range(size)]

    def _contact(self, rank: int) -> dict[str, Any]:
        endpoint = Endpoint("lo", "127.0.0.1", 8, self.listeners[rank].getsockname()[1], 1)
        unix = self.names[rank] if self.segments[rank] is not None else None
        return {"rank": rank, "unix": unix, **announce([endpoint], Settings())}

    def start(self, rank: int, others: list[int], limit_s: float = LIMIT_S) -> Future[dict[int, str]]:
        """The kinds of this rank's connections with the others, which are to be there before its deadline."""
        return self.pool.submit(self._connect, rank, others, limit_s)

    def _connect(self, rank: int, others: list[int], limit_s: float) -> dict[int, str]:
        listeners = [self.listeners[rank], self.locals[rank]]
        connector = Connector(
            rank, EPOCH, KEY, self.contacts, self.segments[rank], listeners,
            Settings(encryption="off"), time.monotonic() + limit_s,
        )  # fmt: skip
        try:
            connector.dial(range(self.size))
            connector.serve_until_connected(others)
            self.connected[rank].set()
            connector.serve_until_connected(range(self.size))
            return {peer: connection.transport for peer, connection in connector.peers.items()}
        finally:
            connector.close()

    def close(self) -> None:
        self.pool.shutdown()
        for listener in [*self.locals, *self.listeners]:
            listener.close()
        for segment in self.segments:
            if segment is not None:
                os.close(segment)


@pytest.fixture(params=[False, True], ids=["tcp", "shm"])
def four(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    ranks = Ranks(4, shared=request.param)
    yield ranks
    ranks.close()


def test_whoever_does_not_answer_keeps_nobody_waiting_and_is_named(four: Ranks) -> None:
    # Rank 1 listens, and says nothing: rank 0 dials it first.
    there = (0, 2, 3)
    started = {rank: four.start(rank, [other for other in there if other != rank], SOON_S) for rank in there}
    assert [four.connected[rank].wait(LIMIT_S) for rank in there] == [True] * 3
    with pytest.raises(BootstrapError, match=r"ranks \[1\] did not let rank 0 in in time"):
        started[0].result(LIMIT_S)
    for rank in (2, 3):
        with pytest.raises(BootstrapError, match=rf"ranks \[1\] did not connect to rank {rank} in time"):
            started[rank].result(LIMIT_S)


def test_whoever_does_not_dial_is_named(four: Ranks) -> None:
    last = four.start(3, [], SOON_S)
    with pytest.raises(BootstrapError, match=r"ranks \[0, 1, 2\] did not connect to rank 3 in time"):
        last.result(LIMIT_S)


def test_half_an_exchange_of_memory_keeps_nobody_waiting() -> None:
    ranks = Ranks(3, shared=True)
    try:
        # The test is rank 0: it proves the key to rank 2, and keeps its memory file to itself.
        half = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        half.connect(f"\0{ranks.names[2]}")
        last = ranks.start(2, [1], SOON_S)
        authenticate(half, KEY, Hello(MESH, EPOCH, 0, 2, SHARED), time.monotonic() + LIMIT_S)
        ranks.start(1, [2], SOON_S)
        assert ranks.connected[2].wait(LIMIT_S)
        with pytest.raises(BootstrapError, match=r"ranks \[0\] did not connect to rank 2 in time"):
            last.result(LIMIT_S)
        half.close()
    finally:
        ranks.close()


def test_ranks_connect_while_strangers_hold_connections(four: Ranks) -> None:
    strangers = [
        socket.create_connection(four.listeners[rank].getsockname(), LIMIT_S)
        for rank in range(four.size)
        for _ in range(2 * MAX_PENDING)
    ]
    try:
        started = [four.start(rank, []) for rank in range(four.size)]
        kinds = [set(each.result(LIMIT_S).values()) for each in started]
    finally:
        for stranger in strangers:
            stranger.close()
    assert kinds == [{"shm" if four.segments[0] is not None else "tcp"}] * four.size


@pytest.mark.parametrize(("gone", "rank", "lane"), [(1, 1, 1), (1, 1, 0), (3, 3, ASKED), (0, 1, 1)])
def test_whoever_was_left_behind_cannot_use_its_key_any_more(gone: int, rank: int, lane: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = Endpoint("lo", "127.0.0.1", 8, listener.getsockname()[1], 1)
    contacts = [{"rank": each, "unix": None, **announce([endpoint], Settings())} for each in range(4)]
    settings = Settings(encryption="off")
    connector = Connector(2, EPOCH, KEY, contacts, None, [listener], settings, time.monotonic() + LIMIT_S)
    connector.connect_late()
    connector.gone.add(gone)
    with socket.create_connection(listener.getsockname(), LIMIT_S) as connection, connector.serving():
        # It still knows the key of the round that it took part in, and proves it.
        authenticate(connection, KEY, Hello(MESH, EPOCH, rank, 2, lane), time.monotonic() + LIMIT_S)
        if gone == rank:
            assert connection.recv(1) == b""
    assert len(connector.lanes) == (gone != rank)
    assert not connector.asked
    connector.close()
