"""Many ranks meet at once, also where strangers hold as many connections as they get."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ringcore.bootstrap.contacts import decode_answer, encode_answer
from ringcore.bootstrap.meeting import meet
from ringcore.bootstrap.rendezvous import RendezvousServer

KEY = bytes(range(32))
RANKS = 512
STRANGERS = 500
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    """Both ends of all connections are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def contact(rank: int, size: int = RANKS) -> dict[str, Any]:
    addresses = [f"eth{number} 2001:db8::{rank:x}:{number}/64" for number in range(4)]
    more = {"host": f"node{rank}", "addresses": addresses, "tcp": [["lo", "127.0.0.1", 8, 40000, 1]]}
    return {"rank": rank, "size": size, "version": "1.0", "start_timeout_s": LIMIT_S, **more}


def meet_all(address: str) -> list[int]:
    """All ranks at the same time, each on a thread; returns how many contacts each was told."""

    def one(rank: int) -> int:
        _, _, contacts = meet(address, KEY, contact(rank), time.monotonic() + LIMIT_S)
        assert [known["rank"] for known in contacts] == list(range(RANKS))
        return len(contacts)

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(one, range(RANKS)))


@contextlib.contextmanager
def strangers(address: str) -> Iterator[None]:
    """Connections that say nothing; each that is closed is followed by another."""
    host, port = address.removeprefix("tcp:").split(":")
    selector = selectors.DefaultSelector()
    stop = threading.Event()

    def knock() -> None:
        selector.register(socket.create_connection((host, int(port)), LIMIT_S), selectors.EVENT_READ)

    def go_on() -> None:
        while not stop.is_set():
            for key, _ in selector.select(0.05):
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                knock()
            stop.wait(0.01)

    for _ in range(STRANGERS):
        knock()
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        selector.close()


@pytest.mark.long
def test_512_ranks_meet() -> None:
    with RendezvousServer(RANKS, KEY) as server:
        assert meet_all(server.address) == [RANKS] * RANKS


def test_512_ranks_meet_while_strangers_hold_connections() -> None:
    with RendezvousServer(RANKS, KEY) as server, strangers(server.address):
        assert meet_all(server.address) == [RANKS] * RANKS


def test_the_table_of_all_ranks_is_small() -> None:
    table = {"epoch": 1, "contacts": [contact(rank) for rank in range(RANKS)]}
    data = encode_answer(table)
    assert decode_answer(data) == table
    # Every rank gets it: in clear text the ranks together would be sent a quarter of a megabyte 512 times.
    assert len(data) < 64 * RANKS
