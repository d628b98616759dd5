"""Tickets: processes that something else has started become ranks, in one job after the other."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from ringcore.environment.placement import find_placement
from ringcore.launcher.external import Job, TicketError, connect
from ringcore.launcher.external.tickets import Ticket
from support.processes import clean_environ

# Reads tickets, is a rank of one job after the other, and writes what it has seen.
WORKER = """
import json, os, sys
import numpy as np, ringcore
from ringcore.launcher.external import connect

before = dict(os.environ)
for line in sys.stdin:
    with connect(bytes.fromhex(line)) as seat:
        ringcore.init()
        total = ringcore.allreduce(np.full(3, seat.rank + 1.0), op=ringcore.Sum)
        place = [ringcore.rank(), ringcore.size(), ringcore.local_rank(), ringcore.local_size()]
        ringcore.shutdown()
        ringcore.init()  # finds its place as often as it likes
        told = os.environ.get("SOME_NAME")
    same = dict(os.environ) == before and not ringcore.is_initialized()
    print(json.dumps([place, total.tolist(), told, same, len(os.listdir("/proc/self/fd"))]), flush=True)
"""


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[str]]]:
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WORKER],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environ(),
                )
            )
            for _ in range(2)
        ]  # fmt: skip
        for process in started:
            stack.callback(process.kill)
        yield started


def test_processes_are_ranks_of_one_job_after_the_other_and_nothing_is_left(
    workers: list[subprocess.Popen[str]],
) -> None:
    descriptors = []
    for number in range(3):
        with Job(2, environ={"SOME_NAME": f"job {number}"}) as job:
            for rank, process in enumerate(workers):
                assert process.stdin is not None
                print(job.ticket(rank).hex(), file=process.stdin, flush=True)
            told = [json.loads(process.stdout.readline()) for process in workers if process.stdout is not None]
        assert [place for place, *_ in told] == [[0, 2, 0, 2], [1, 2, 1, 2]]
        assert all(total == [3.0] * 3 for _, total, *_ in told)
        assert all(name == f"job {number}" for _, _, name, *_ in told)
        assert all(same for *_, same, _ in told)
        descriptors.append([count for *_, count in told])
    assert descriptors[1] == descriptors[2]


def test_a_process_has_one_place_at_a_time() -> None:
    with (
        Job(2) as job,
        Job(3) as other,
        connect(job.ticket(1)),
        pytest.raises(TicketError, match=r"cannot be rank 2 of 3: it is in a job already \(rank 1 of 2\)"),
    ):
        connect(other.ticket(2))
    with Job(1) as job, connect(job.ticket(0)) as seat:
        assert (seat.rank, os.environ["RINGCORE_SIZE"]) == (0, "1")
    assert "RINGCORE_SIZE" not in os.environ


def test_two_jobs_at_once_do_not_find_each_other() -> None:
    with Job(1) as first, Job(1) as second:
        tickets = [Ticket.unpack(job.ticket(0)) for job in (first, second)]
    assert len({ticket.key for ticket in tickets}) == len({ticket.address for ticket in tickets}) == 2
    assert tickets[0].key.hex() not in repr(tickets[0])


def test_what_is_no_ticket_or_one_of_another_version_is_refused() -> None:
    with Job(2) as job:
        good = job.ticket(0)
        with pytest.raises(ValueError, match="there is no rank 2 in a job of 2 ranks"):
            job.ticket(2)
    with pytest.raises(ValueError, match="at least one rank, not 0"):
        Job(0)
    with pytest.raises(TicketError, match="no ticket"):
        connect(b"\x80\x04")
    other = json.loads(good)
    other["here"] |= {"host": "driver-7", "ringcore": "9.9"}
    with pytest.raises(TicketError, match=r"driver-7 has ringcore 9\.9, but .* has ringcore "):
        connect(json.dumps(other).encode())
    other["here"] |= {"ringcore": json.loads(good)["here"]["ringcore"], "Python": "2.7"}
    with pytest.raises(TicketError, match=r"driver-7 has Python 2\.7, but .* install the same version on all hosts"):
        connect(json.dumps(other).encode())


def test_a_rank_that_has_a_ticket_does_not_say_that_ringrun_has_placed_it() -> None:
    with Job(1) as job, connect(job.ticket(0)):
        assert find_placement(os.environ).placed_by == "a ticket"
