"""Ranks that do not fit together are told so, each of them; what is not a rank does not stop the others."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ringcore._errors import BootstrapError
from ringcore.bootstrap import rendezvous
from ringcore.bootstrap.auth import RENDEZVOUS, Hello, authenticate, receive_exactly
from ringcore.bootstrap.contacts import HEADER, RANK, SERVER, decode_answer, headers
from ringcore.bootstrap.interfaces import towards
from ringcore.bootstrap.keys import read_key
from ringcore.bootstrap.meeting import meet
from ringcore.bootstrap.rendezvous import RendezvousServer
from ringcore.bootstrap.sockets import dial, listen_tcp
from ringcore.environment.settings import Settings

KEY = bytes(range(32))
LIMIT_S = 20.0


def contact(rank: int, size: int = 2, version: str = "1.0", start_timeout_s: float = LIMIT_S) -> dict[str, Any]:
    return {"rank": rank, "size": size, "version": version, "start_timeout_s": start_timeout_s}


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s: {what}"
        time.sleep(0.001)


def post(server: RendezvousServer, *contacts: dict[str, Any]) -> list[Any]:
    """Each contact posted by a thread of its own; the answers, or what was raised."""

    def one(posted: dict[str, Any]) -> Any:
        try:
            return meet(server.address, KEY, posted, time.monotonic() + LIMIT_S)
        except BootstrapError as error:
            return str(error)

    with ThreadPoolExecutor(len(contacts)) as pool:
        return list(pool.map(one, contacts))


@pytest.fixture
def server() -> Iterator[RendezvousServer]:
    with RendezvousServer(2, KEY) as running:
        yield running


def test_every_rank_gets_all_contacts_and_each_round_an_epoch_and_a_key_of_its_own(server: RendezvousServer) -> None:
    keys = set()
    for epoch in (1, 2, 3):
        first, second = post(server, contact(0), contact(1))
        assert first == second == (epoch, first[1], [contact(0), contact(1)])
        keys.add(first[1])
    # Whoever still dials in an earlier round is a stranger in the next one.
    assert len(keys - {KEY}) == 3
    assert server.wait_served(3, LIMIT_S)


def test_it_listens_on_loopback_only(server: RendezvousServer) -> None:
    assert server.address.startswith("tcp:127.0.0.1:")


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (contact(0), "two processes say that they are rank 0"),
        (contact(2), "there is no rank 2 in a job of 2 ranks"),
        (contact(1, size=3), "rank 1 believes that the job has 3 ranks, but it was started with 2"),
        (contact(1, version="0.9"), "install the same version on all hosts"),
    ],
)
def test_ranks_that_do_not_fit_together_are_told(server: RendezvousServer, second: dict[str, Any], said: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, server, contact(0))
        eventually(lambda: server.posted() == [0], "rank 0 has posted")
        answers = [*post(server, second), *first.result()]
    assert any(said in str(answer) for answer in answers), answers
    assert all("the job cannot start" in str(answer) for answer in answers), answers
    # The next attempt is not spoiled.
    assert [answer[2] for answer in post(server, contact(0), contact(1))] == [[contact(0), contact(1)]] * 2


@pytest.mark.parametrize("name", ["mine", None])
def test_a_rank_of_another_job_is_sent_away_and_the_others_go_on(name: str | None) -> None:
    with RendezvousServer(2, KEY, job=name) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, server, {**contact(0), "job": name})
        eventually(lambda: server.posted() == [0], "rank 0 has posted")
        (refused,) = post(server, {**contact(1, size=5), "job": "other"})
        assert server.posted() == [0]
        here = "job 'mine'" if name else "a job without a name"
        assert f"the ranks of {here} meet at {server.address}, and rank 1 is of job 'other'" in refused
        assert "RINGCORE_JOB_ID" in refused
        answers = [*post(server, {**contact(1), "job": name}), *first.result()]
        assert [answer[0] for answer in answers] == [1, 1], answers
        # Where it is a mistake, the others are told when their patience ends.
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(post, server, {**contact(0, start_timeout_s=0.3), "job": name})
            eventually(lambda: server.posted() == [0], "rank 0 has posted again")
            post(server, {**contact(1), "job": "other"})
            assert "refused was rank 1 of job 'other'" in waiting.result()[0]


def test_who_comes_first_does_not_take_over_a_job_without_a_name() -> None:
    with RendezvousServer(2, KEY, job="") as server:
        (refused,) = post(server, {**contact(1), "job": "other"})
        assert "the ranks of a job without a name meet at" in refused
        answers = post(server, contact(0), contact(1))
        assert [answer[0] for answer in answers] == [1, 1], answers


def test_versions_that_differ_are_both_named(server: RendezvousServer) -> None:
    answers = post(server, contact(0, version="1.0"), contact(1, version="1.1"))
    assert all("1.0" in answer and "1.1" in answer for answer in answers), answers


def test_a_missing_rank_is_named(server: RendezvousServer) -> None:
    (answer,) = post(server, contact(0, start_timeout_s=0.2))
    assert "ranks [1] did not come within 0.2 s" in answer
    assert "RINGCORE_START_TIMEOUT_S" in answer


def enter(server: RendezvousServer) -> tuple[socket.socket, bytes]:
    connection = dial(server.address, time.monotonic() + LIMIT_S)
    secret = authenticate(connection, KEY, Hello(RENDEZVOUS, 0, 0, 0), time.monotonic() + LIMIT_S)
    connection.settimeout(LIMIT_S)
    return connection, secret


def post_raw(server: RendezvousServer, data: bytes) -> socket.socket:
    connection, secret = enter(server)
    connection.sendall(headers(data, RANK, [secret])[0] + data)
    return connection


def answer_to(connection: socket.socket) -> dict[str, Any]:
    length, _ = HEADER.unpack(receive_exactly(connection, HEADER.size, time.monotonic() + LIMIT_S))
    return decode_answer(receive_exactly(connection, length, time.monotonic() + LIMIT_S))


def changed(**fields: Any) -> bytes:
    return json.dumps({**contact(1), **fields}).encode()


def test_what_is_no_contact_at_all_is_dropped(server: RendezvousServer) -> None:
    oversized, _ = enter(server)
    oversized.sendall(HEADER.pack(0xFFFFFFFF, bytes(32)) + b"x" * 70_000)
    with oversized, contextlib.suppress(ConnectionResetError):
        assert oversized.recv(4096) == b""
    assert [answer[0] for answer in post(server, contact(0), contact(1))] == [1, 1]


def test_a_contact_that_was_changed_on_its_way_is_refused(server: RendezvousServer) -> None:
    data = json.dumps(contact(0)).encode()
    changed_data = data.replace(b'"start_timeout_s"', b'"Start_timeout_s"')
    connection, secret = enter(server)
    with connection:
        connection.sendall(headers(data, RANK, [secret])[0] + changed_data)
        assert "was changed on its way" in answer_to(connection)["error"]
    connection, secret = enter(server)
    with connection:  # what the server itself has sealed fits nobody else
        connection.sendall(headers(data, SERVER, [secret])[0] + data)
        assert "was changed on its way" in answer_to(connection)["error"]
    assert server.posted() == []


def test_an_answer_that_was_changed_on_its_way_is_an_error(
    server: RendezvousServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "SERVER", b"somebody else")
    for said in post(server, contact(0), contact(1)):
        assert "was changed on its way: something between the two hosts" in said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"no JSON", "it is no JSON"),
        (b"\xff\xfe", "it is no JSON"),
        (b"[" * 30_000, "it is no JSON"),
        (b'{"rank": ' + b"[" * 900 + b"]" * 900 + b"}", "it has no 'size'"),
        (b"1" * 5_000, "it is no JSON"),
        (b"[1, 2]", "it is list instead of an object"),
        (changed(rank="0"), "its 'rank' is none"),
        (changed(rank=None), "its 'rank' is none"),
        (changed(rank=True), "its 'rank' is none"),
        (changed(rank=10**400), "its 'rank' is none"),
        (changed(start_timeout_s="soon"), "its 'start_timeout_s' is none"),
        (changed(start_timeout_s=10**400), "its 'start_timeout_s' is none"),
        (changed(start_timeout_s=float("nan")), "its 'start_timeout_s' is none"),
        (changed(version=1), "its 'version' is none"),
        (changed(job={}), "its 'job' is none"),
        (changed(tcp=[["eth0", "10.0.0.1", 16, 40000]]), "its 'tcp' is none"),
        (changed(table_port=1 << 16), "its 'table_port' is none"),
        (changed(more=[]), "nothing in it is called 'more'"),
    ],
)
def test_a_contact_that_cannot_be_read_is_that_ranks_trouble_alone(
    server: RendezvousServer, data: bytes, said: str
) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, server, contact(0))
        eventually(lambda: server.posted() == [0], "rank 0 has posted")
        with post_raw(server, data) as connection:
            answer = answer_to(connection)
        assert said in answer["error"]
        assert server.posted() == [0]
        assert [answer[0] for answer in [*post(server, contact(1)), *first.result()]] == [1, 1]


def test_a_contact_that_is_too_large_is_refused_where_it_is_made(server: RendezvousServer) -> None:
    (said,) = post(server, {**contact(0), "addresses": ["x" * 1000] * 100})
    assert "rank 0" in said and "65536 are allowed; choose some of its addresses with --network" in said


def noise() -> str:
    return base64.b85encode(os.urandom(800)).decode()


@pytest.mark.long
def test_a_rank_that_does_not_read_its_answer_holds_up_nobody() -> None:
    # The answer is larger than what the kernel keeps for a connection, also packed: it is made of noise.
    size = 120
    with RendezvousServer(size, KEY) as server, contextlib.ExitStack() as stack:
        contacts = [{**contact(rank, size), "addresses": [noise() for _ in range(60)]} for rank in range(size)]
        for deaf in range(6):
            connection = post_raw(server, json.dumps(contacts[deaf]).encode())
            stack.enter_context(connection)
        eventually(lambda: server.posted() == list(range(6)), "the deaf have posted")
        assert [answer[0] for answer in post(server, *contacts[6:])] == [1] * (size - 6)
        assert not server.wait_served(1, 0.05), "the deaf have not got it"


def test_a_rank_that_dies_while_it_waits_may_come_again(server: RendezvousServer) -> None:
    with post_raw(server, json.dumps(contact(0)).encode()):
        eventually(lambda: server.posted() == [0], "rank 0 has posted")
    eventually(lambda: server.posted() == [], "the server has noticed")
    answers = post(server, contact(0), contact(1))
    assert [answer[0] for answer in answers] == [1, 1], answers


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BootstrapError, match=f"cannot listen on 127.0.0.1:{port} .*choose another port"):
            listen_tcp("127.0.0.1", port)


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(BootstrapError, match=r"192\.0\.2\.1.*name an address of this machine"):
        listen_tcp("192.0.2.1")


def resolve_to(monkeypatch: pytest.MonkeyPatch, *targets: tuple[str, int]) -> None:
    """Every name means these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", target) for target in targets]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, ("198.51.100.1", 0), ("127.0.0.2", 0))
    with listen_tcp("node") as listener:
        port = listener.getsockname()[1]
        resolve_to(monkeypatch, ("127.0.0.1", port), ("127.0.0.2", port))
        with dial("tcp:node:1", time.monotonic() + LIMIT_S) as connection:
            assert connection.getpeername() == ("127.0.0.2", port)
        # Others would take whoever has the first one's port for this rank.
        resolve_to(monkeypatch, ("127.0.0.2", port), ("127.0.0.1", port))
        with pytest.raises(BootstrapError, match=f"cannot listen on 127.0.0.2:{port} .*choose another port"):
            listen_tcp("node", port)
    resolve_to(monkeypatch, ("127.0.0.1", port), ("127.0.0.2", port))
    with pytest.raises(BootstrapError, match=r"\(127.0.0.1: .*refused; 127.0.0.2: .*refused\)"):
        dial("tcp:node:1", time.monotonic() + 0.1)
    resolve_to(monkeypatch, ("198.51.100.1", 0), ("198.51.100.2", 0))
    with pytest.raises(BootstrapError, match=r"198.51.100.1:0 \(.*\), 198.51.100.2:0 \(.*\); name an address of this"):
        listen_tcp("node")
    # The kernel has no route for a broadcast without leave.
    resolve_to(monkeypatch, ("255.255.255.255", 9), ("127.0.0.1", 9))
    assert towards("node").ip == "127.0.0.1"
    resolve_to(monkeypatch, ("255.255.255.255", 9))
    with pytest.raises(BootstrapError, match=r"no route to the rendezvous host 'node' .255.255.255.255: "):
        towards("node")


def test_a_host_that_does_not_resolve_is_named() -> None:
    with pytest.raises(BootstrapError, match=r"'no-such-host\.invalid' does not resolve"):
        dial("tcp:no-such-host.invalid:1", time.monotonic() + LIMIT_S)


def test_nobody_there_is_said_at_the_deadline() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, not listening
        address = f"tcp:127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(BootstrapError, match="nobody answers at"):
            dial(address, time.monotonic() + 0.1)


def test_on_a_unix_socket_the_server_gives_the_key(tmp_path: Path) -> None:
    with RendezvousServer(1, KEY, path=str(tmp_path / "socket")) as server:
        assert meet(server.address, None, contact(0, size=1), time.monotonic() + LIMIT_S)[0] == 1
    assert not (tmp_path / "socket").exists()


@pytest.mark.parametrize(
    ("mode", "content", "said"),
    [
        (0o644, KEY, "can be read by others; run: chmod 600"),
        (0o600, b"short", "holds no key: 32 bytes, or 64 hexadecimal digits"),
    ],
)
def test_a_key_file_must_be_private_and_hold_a_key(tmp_path: Path, mode: int, content: bytes, said: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(BootstrapError, match=said):
        read_key(Settings.from_environ({"RINGCORE_KEY_FILE": str(path)}))


def test_a_closed_server_leaves_no_thread_and_no_descriptor() -> None:
    before = (threading.active_count(), len(os.listdir("/proc/self/fd")))
    for _ in range(20):
        with RendezvousServer(1, KEY) as server:
            post(server, contact(0, size=1))
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
