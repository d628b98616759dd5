"""Many ranks over TCP: each is connected with few, more links come when they are needed, and all hear who is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.rank import await_mark, caught, mark

SIZE = 20
TCP = {"RINGCORE_TRANSPORT": "tcp", "OMP_NUM_THREADS": "1"}
# Where others dial, where users ask, a parent, four children, four that watch each other with this one.
AT_START = 1 + 1 + 1 + 4 + 4


def meets_whom_it_needs() -> dict:
    from support.rank import sums_rightly
    from support.sockets import sockets_of

    before = sockets_of(os.getpid())
    ringcore.init()
    rank, size = ringcore.rank(), ringcore.size()
    found = {"at start": sockets_of(os.getpid()) - before}
    found["right"] = sums_rightly(1)
    # These two are far from each other in the tree and in the ring; nobody else connects.
    ends = ringcore.add_process_set([7, 14])
    if rank in (7, 14):
        mine = np.full(3, float(rank), np.float32)
        found["pair"] = ringcore.allreduce(mine, op=ringcore.Sum, process_set=ends, name="pair").tolist()
    # Each has something for each: whoever has no link with another one gets it.
    dealt = ringcore.alltoall(np.full((size, 4096), rank, np.float32), name="all")
    found["right"] &= bool((dealt == np.arange(size, dtype=np.float32)[:, None]).all())
    found["right"] &= sums_rightly(1 << 16)
    ringcore.shutdown()
    return found


def test_links_come_when_they_are_needed(tmp_path: Path) -> None:
    found = ranks.run(meets_whom_it_needs, SIZE, tmp_path, env=TCP)
    assert all(of_rank["right"] for of_rank in found)
    assert max(of_rank["at start"] for of_rank in found) <= AT_START
    assert [found[rank]["pair"] for rank in (7, 14)] == [[21.0] * 3] * 2


def waits_for_all() -> dict:
    ringcore.init()
    ringcore.barrier()
    mark("ready")

    def forever() -> None:
        while True:
            ringcore.barrier()

    error = caught(forever)
    ringcore.shutdown()
    return error


def test_all_hear_which_rank_was_killed(tmp_path: Path) -> None:
    lost = 2  # an inner node of the tree: others are reached through it
    with ranks.started(waits_for_all, SIZE, tmp_path, env=TCP) as job:
        job.await_mark("ready", *range(SIZE))
        job.signal(lost, signal.SIGKILL)
        outcomes = job.wait()
    for outcome in outcomes:
        if outcome.rank == lost:
            continue
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.result["type"] == "PeerLostError", outcome.result
        assert outcome.result["message"].startswith(f"rank {lost} "), outcome.result


def stops_when_it_has_met_the_others(lost: int, does: str) -> dict:
    from ringcore.bootstrap.connector import Connector
    from ringcore.bootstrap.spread import Spread

    if int(os.environ["RANK"]) == lost:  # It does nothing more.
        stops = {"connect": (Connector, "dial"), "hand on the table": (Spread, "take")}
        setattr(*stops[does], lambda *_, **__: await_mark("over", "test"))

    def starts() -> None:
        ringcore.init()
        ringcore.barrier()

    return caught(starts)


@pytest.mark.parametrize(
    ("lost", "does", "encryption"),
    [
        pytest.param(9, "connect", "off", marks=pytest.mark.long),
        (9, "connect", "on"),
        pytest.param(1, "hand on the table", "off", marks=pytest.mark.long),
    ],
)
def test_all_hear_which_rank_did_not_connect(tmp_path: Path, lost: int, does: str, encryption: str) -> None:
    env = {**TCP, "RINGCORE_START_TIMEOUT_S": "8", "RINGCORE_ENCRYPTION": encryption}
    with ranks.started(stops_when_it_has_met_the_others, SIZE, tmp_path, lost, does, env=env) as job:
        others = [rank for rank in range(SIZE) if rank != lost]
        job.await_end(*others)
        job.mark("over")
        outcomes = job.wait()
    # Few wait for it from the start; the others run already, and hear of it there.
    for rank in others:
        assert outcomes[rank].result["type"] in ("BootstrapError", "PeerLostError"), outcomes[rank]
        assert f"ranks [{lost}] did not " in outcomes[rank].result["message"], outcomes[rank]


def has_another_setting(other: int) -> dict:
    if int(os.environ["RANK"]) == other:
        os.environ["RINGCORE_ENCRYPTION"] = "off"
    return caught(ringcore.init)


def test_all_hear_which_rank_has_another_setting(tmp_path: Path) -> None:
    other = 13
    for outcome in ranks.run(has_another_setting, SIZE, tmp_path, other, env={**TCP, "RINGCORE_ENCRYPTION": "on"}):
        assert outcome["type"] == "BootstrapError", outcome
        assert f"RINGCORE_ENCRYPTION=on, but rank {other} on " in outcome["message"], outcome
