"""Among many the table of contacts goes from rank to rank: nobody gets another one, or depends on who hands it on."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ringcore._errors import BootstrapError
from ringcore.bootstrap import meeting, spread
from ringcore.bootstrap.auth import RENDEZVOUS, TABLE, Hello, authenticate
from ringcore.bootstrap.contacts import RANK, encode_answer, headers
from ringcore.bootstrap.rendezvous import RendezvousServer
from ringcore.bootstrap.sockets import dial

KEY = bytes(range(32))
LIMIT_S = 60.0
PATIENCE_S = 8.0  # of a rank that hangs
SIZE = 64
SMALL_ANSWER_BYTES = 400
Outcome = tuple[int, Any, list[dict[str, Any]]] | str


def contact(rank: int, **more: Any) -> dict[str, Any]:
    """Of which hardly anything can be packed."""
    noise = base64.b85encode(os.urandom(200)).decode()
    tcp = [["lo", "127.0.0.1", 8, 1, 1]]
    return {
        "rank": rank, "size": SIZE, "version": "1.0", "start_timeout_s": LIMIT_S, "host": "node", "addresses": [noise],
        "tcp": tcp, **more,
    }  # fmt: skip


def meet_all(server: RendezvousServer, contacts: list[dict[str, Any]]) -> list[Outcome]:
    """What each of these ranks is told, each on a thread."""

    def one(posted: dict[str, Any]) -> Outcome:
        try:
            return meeting.meet(server.address, KEY, posted, time.monotonic() + LIMIT_S)
        except BootstrapError as error:
            return str(error)

    with ThreadPoolExecutor(len(contacts)) as pool:
        return list(pool.map(one, contacts))


def contacts_in(outcomes: list[Outcome], contacts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What all of them have been told."""
    tables = [outcome[2] for outcome in outcomes if not isinstance(outcome, str)]
    assert len(tables) == len(outcomes), outcomes
    assert all(table == tables[0] for table in tables)
    assert len({bytes(outcome[1]) for outcome in outcomes}) == 1, "all have one key"  # type: ignore[arg-type]
    told = [{name: value for name, value in one.items() if name != "table_port"} for one in tables[0]]
    assert [one for one in told if one["rank"] in {each["rank"] for each in contacts}] == contacts
    return tables[0]


@pytest.fixture
def from_rendezvous(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what the rendezvous says to ranks."""
    sizes: list[int] = []
    receive = meeting.receive_exactly

    def counted(connection: socket.socket, count: int, deadline: float) -> bytes:
        sizes.append(count)
        return receive(connection, count, deadline)

    monkeypatch.setattr(meeting, "receive_exactly", counted)
    return sizes


def test_the_rendezvous_sends_the_table_once(from_rendezvous: list[int]) -> None:
    contacts = [contact(rank) for rank in range(SIZE)]
    with RendezvousServer(SIZE, KEY) as server:
        table = contacts_in(meet_all(server, contacts), contacts)
        assert server.wait_served(1, LIMIT_S)
    assert sum(from_rendezvous) < len(encode_answer({"contacts": table})) + SIZE * SMALL_ANSWER_BYTES
    assert len(from_rendezvous) == 2 * SIZE  # header and answer: nobody had to ask


def test_where_one_cannot_be_reached_all_get_the_table_from_the_rendezvous(from_rendezvous: list[int]) -> None:
    # What is wrong is said by checks of the whole table, and that at once.
    contacts = [contact(rank, **({"tcp": []} if rank == 5 else {})) for rank in range(SIZE)]
    with RendezvousServer(SIZE, KEY) as server:
        table = contacts_in(meet_all(server, contacts), contacts)
    assert sum(from_rendezvous) > SIZE * len(encode_answer({"contacts": table}))


def changed_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    send = spread.send_all

    def change(connection: socket.socket, data: bytes, deadline: float) -> None:
        send(connection, data[:-1] + bytes([data[-1] ^ 1]), deadline)

    monkeypatch.setattr(spread, "send_all", change)


def made_by_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    hand_on = spread.Spread.hand_on

    def another(self: spread.Spread, data: bytes, contacts: list[dict[str, Any]]) -> None:
        hand_on(self, encode_answer({"epoch": 1, "round": "", "contacts": contacts[::-1]}), contacts)

    monkeypatch.setattr(spread.Spread, "hand_on", another)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed_on_its_way, "that rank 0 handed rank {} was changed on its way: something between the two hosts"),
        (made_by_a_rank, "rank 0 handed rank {} a table of the ranks that is not the one that the rendezvous made"),
    ],
)
def test_another_table_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None], said: str
) -> None:
    monkeypatch.setattr(spread, "_PATIENCE_S", 1.0)
    change(monkeypatch)
    with RendezvousServer(SIZE, KEY) as server:
        outcomes = meet_all(server, [contact(rank) for rank in range(SIZE)])
    for child in range(1, 1 + spread.CHILDREN):
        assert said.format(child) in str(outcomes[child])


@pytest.mark.parametrize("how", ["dead", pytest.param("hanging", marks=pytest.mark.long)])
def test_who_does_not_hand_the_table_on_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, how: str, from_rendezvous: list[int]
) -> None:
    monkeypatch.setattr(spread, "_PATIENCE_S", 1.0)
    lost = 1
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(RendezvousServer(SIZE, KEY))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        begin = time.monotonic()
        posted = contact(lost, start_timeout_s=PATIENCE_S, table_port=listener.getsockname()[1])
        data = json.dumps(posted).encode()
        connection = stack.enter_context(dial(server.address, time.monotonic() + LIMIT_S))
        secret = authenticate(connection, KEY, Hello(RENDEZVOUS, 0, lost, 0), time.monotonic() + LIMIT_S)
        connection.sendall(headers(data, RANK, [secret])[0] + data)
        connection.settimeout(LIMIT_S)

        def die() -> None:
            connection.recv(1)  # All have met.
            listener.close()
            connection.close()

        if how == "dead":
            thread = threading.Thread(target=die)
            thread.start()
            stack.callback(thread.join)
        contacts = [contact(rank) for rank in range(SIZE) if rank != lost]
        contacts_in(meet_all(server, contacts), contacts)
        assert server.wait_served(1, LIMIT_S)
        assert how == "dead" or time.monotonic() - begin > PATIENCE_S
    # Those that wait for it have asked; each answer has a header.
    assert len(from_rendezvous) >= 2 * (len(contacts) + spread.CHILDREN)


def test_a_stranger_hands_nobody_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = spread.listen_for_table(contact(3))
    port = listener.getsockname()[1]
    told: list[bytes | None] = []
    mine = spread.Spread(3, 4, 1, KEY, time.monotonic() + 4.0)
    taking = threading.Thread(target=lambda: told.append(mine.take(listener, "")))
    taking.start()
    for purpose, to_rank, key in ((RENDEZVOUS, 3, KEY), (TABLE, 4, KEY), (TABLE, 3, b"x" * 32)):
        with contextlib.suppress(BootstrapError), socket.create_connection(("127.0.0.1", port)) as connection:
            secret = authenticate(connection, key, Hello(purpose, 1, 0, to_rank), time.monotonic() + LIMIT_S)
            with contextlib.suppress(OSError):
                connection.sendall(headers(b"table", RANK, [secret])[0] + b"table")
    taking.join()
    assert told == [None]
