"""Lanes of data over TCP are connected when they are first needed, whoever else connects to the running job."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from typing import Any

import ringcore
from support import ranks
from support.rank import await_mark, caught, mark
from support.sockets import listening

TCP = {"RINGCORE_TRANSPORT": "tcp"}
HELD = 1500  # more than the kernel lets wait
# `nox -s strangers` asks for more. So many are knocks between two signs of life.
KNOCKS = int(os.environ.get("RINGCORE_STRANGERS", "10000"))
ROUND = 10_000


def counts_its_connections() -> tuple[int, int, int, bool]:
    from support.rank import sums_rightly
    from support.sockets import sockets_of

    before = sockets_of(os.getpid())
    ringcore.init()
    right = sums_rightly(2)
    at_start = sockets_of(os.getpid()) - before
    right &= sums_rightly(1 << 20)
    later = sockets_of(os.getpid()) - before
    for _ in range(20):
        right &= sums_rightly(1 << 20)
    return at_start, later, sockets_of(os.getpid()) - before, right


def test_a_lane_is_connected_when_an_operation_needs_it(tmp_path: Path) -> None:
    for at_start, later, at_the_end, right in ranks.run(counts_its_connections, 3, tmp_path, env=TCP):
        # Where others dial, where users ask, and one connection a peer for control.
        assert at_start == 1 + 1 + 2
        # One lane of each peer; the next one when the next operation took it.
        assert at_start < later <= at_start + 2
        # Never the urgent one, which nothing asked for.
        assert at_the_end <= at_start + 2 * 2
        assert right


def works_among_strangers(rounds: int) -> bool:
    from support.rank import sums_rightly

    ringcore.init()
    right = sums_rightly(2)
    mark("running")
    for number in range(rounds):
        await_mark(f"attacked.{number}", "test")
    right &= sums_rightly(1 << 20)
    mark("reduced")
    await_mark("attacked again", "test")
    for _ in range(5):
        right &= sums_rightly(1 << 20)
    ringcore.shutdown()
    return right


def _knock(address: Any, number: int) -> None:
    """A stranger who does not stay."""
    with socket.socket() as stranger:
        stranger.setblocking(False)
        stranger.connect_ex(address)
        if number % 100 == 0:
            stranger.setblocking(True)
            stranger.settimeout(0.01)
            try:
                # Nonsense, or what begins as a greeting and breaks off.
                stranger.send(random.Random(number).randbytes(200) if number % 200 == 0 else b"ringcore" + bytes(20))
            except OSError:
                pass  # there was no room for it in the kernel's queue


def test_strangers_beside_a_running_job(tmp_path: Path) -> None:
    rounds = max(1, KNOCKS // ROUND)
    with ranks.started(works_among_strangers, 2, tmp_path, rounds, env=TCP) as job:
        job.await_mark("running", 0, 1)
        listened = [address for rank in (0, 1) for address in listening(job.pid(rank))]
        addresses = [address for address in listened if isinstance(address, tuple)]
        # Where the others dial: on loopback, because no hosts were named. And where the user asks, in a private folder.
        assert len(listened) == len(addresses) + 2
        assert [address[0] for address in addresses] == ["127.0.0.1"] * 2
        for number in range(rounds):
            for stranger in range(KNOCKS * number // rounds, KNOCKS * (number + 1) // rounds):
                _knock(addresses[stranger % 2], stranger)
            job.mark(f"attacked.{number}")
        job.await_mark("reduced", 0, 1)
        held = [socket.socket() for _ in range(2 * HELD)]
        for number, stranger in enumerate(held):
            stranger.setblocking(False)
            stranger.connect_ex(addresses[number % 2])
        job.mark("attacked again")
        outcomes = job.wait()
        for stranger in held:
            stranger.close()
    assert [outcome.result for outcome in outcomes] == [True, True], outcomes
    said = outcomes[0].stderr + outcomes[1].stderr
    assert "Traceback" not in said
    assert said.count("refused a connection") <= 2, said


def loses_the_way() -> str:
    from ringcore.job.state import context
    from support.rank import sums_rightly

    ringcore.init()
    assert sums_rightly(2)
    if ringcore.rank() == 1:  # Nobody listens any more, though the rank lives.
        late = context().late_lanes
        assert late is not None
        late.stop()
        mark("deaf")
    await_mark("deaf", 1)
    return str(caught(sums_rightly, 1 << 20)["message"])


def test_a_lane_that_cannot_be_connected_fails_all_ranks_and_names_two(tmp_path: Path) -> None:
    for said in ranks.run(loses_the_way, 2, tmp_path, env=TCP):
        assert "rank 0 cannot connect from 127.0.0.1 to rank 1" in said
        assert "firewall" in said


def wants_what_it_does_not_need(lane: int) -> bool:
    from ringcore.job.state import context
    from support.processes import eventually
    from support.rank import sums_rightly

    ringcore.init()
    right = sums_rightly(2)
    if ringcore.rank() == 0:  # As if an operation had wanted a lane, and ended when another rank was lost.
        late = context().late_lanes
        assert late is not None
        meeting, number = late._meeting_of[1]
        late._want(meeting, number, lane)
        begin = meeting.awaited[number, lane]
        os.write(late._stop_write, b"!")
        eventually(lambda: meeting.awaited.get((number, lane)) != begin, "the lane was looked for long enough")
        mark("waited")
    await_mark("waited", 0)
    return right and sums_rightly(2) and all(sums_rightly(1 << 20) for _ in range(4))


def test_a_lane_that_nothing_waits_for_any_more_costs_no_link(tmp_path: Path) -> None:
    env = {**TCP, "RINGCORE_START_TIMEOUT_S": "2"}
    assert ranks.run(wants_what_it_does_not_need, 2, tmp_path, 2, env=env) == [True, True]


def waits_for_a_lane() -> str:
    from ringcore.job.state import context
    from support.rank import sums_rightly

    ringcore.init()
    assert sums_rightly(2)
    if ringcore.rank() == 1:  # It listens, and looks at nobody.
        late = context().late_lanes
        assert late is not None
        late._want = lambda *_: None
    return str(caught(sums_rightly, 1 << 20)["message"])


def test_a_lane_that_an_operation_waits_for_in_vain_fails_all_ranks(tmp_path: Path) -> None:
    dials, listens = ranks.run(waits_for_a_lane, 2, tmp_path, env={**TCP, "RINGCORE_START_TIMEOUT_S": "2"})
    assert "between this rank and rank 1 was not connected within 2 s (rank 0 at 127.0.0.1 dials rank 1" in dials
    assert "rank 0 closed the connection, as seen by rank 1" in listens


def forks() -> bool:
    from support.rank import sums_rightly
    from support.sockets import sockets_of

    before = sockets_of(os.getpid())
    ringcore.init()
    right = sums_rightly(2)
    child = os.fork()
    if child == 0:
        # Its copies of listener and connections are closed: the death of its parent shows, and the port is free.
        os._exit(0 if sockets_of(os.getpid()) == before else 1)
    _, status = os.waitpid(child, 0)
    return right and os.waitstatus_to_exitcode(status) == 0 and sums_rightly(1 << 20)


def test_a_forked_child_keeps_neither_listener_nor_connections(tmp_path: Path) -> None:
    assert ranks.run(forks, 2, tmp_path, env=TCP) == [True, True]
