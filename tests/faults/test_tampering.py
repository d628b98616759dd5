"""Somebody between the ranks changes what they send: all of them hear of it, no sum is wrong, and nobody waits."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringcore
from support import ranks
from support.middle import Middle, Tamper, Tampering, Way, carry, middle, strip_encryption
from support.rank import await_mark, caught, mark

# `nox -s tampering` asks for more.
ROUNDS = int(os.environ.get("RINGCORE_TAMPERINGS", "24"))
# Side by side: most of a round is spent with waiting.
JOBS = min(max(ROUNDS // 6, 1), 16)
SIZE = 3
# Of what a round carries, up to here: whatever happens later may be found by one end only, as the job ends.
PART = 0.6
HANDSHAKES = 9_000


def names_below(kind: type[Exception]) -> set[str]:
    return {kind.__name__}.union(*map(names_below, kind.__subclasses__()))


ERRORS = names_below(ringcore.RingcoreError)


def works_behind_a_middle(rounds: int, ports: list[int]) -> list[dict]:
    """In each round: starts, reduces, ends."""
    from support.rank import listen_behind

    listen_behind(ports)

    def reduces() -> str:
        ringcore.init()
        for step in range(6):
            for elements in (3, 20_000):
                tensor = np.arange(elements, dtype=np.float32) + step * ringcore.rank()
                total = ringcore.allreduce(tensor, op=ringcore.Sum, name=f"of.{elements}.{step}")
                if not (total == 3 * np.arange(elements, dtype=np.float32) + 3 * step).all():
                    return "a wrong sum"
            if ringcore.broadcast_object(f"object {step}" if ringcore.rank() == 0 else None) != f"object {step}":
                return "a wrong object"
        return "right"

    outcomes = []
    for number in range(rounds):
        mark(f"ready.{number}")
        await_mark(f"go.{number}", "test")
        outcomes.append(caught(reduces))
        ringcore.shutdown()
    mark(f"ready.{rounds}")
    return outcomes


@contextlib.contextmanager
def job_behind_a_middle(
    directory: Path, work: Callable[..., Any], *arguments: Any, idle_s: float | None = None
) -> Iterator[tuple[Middle, ranks.Ranks]]:
    """Ranks of which each works with these arguments and the ports of the middle. `idle_s`: see there."""
    with open(os.open(directory / "key", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(os.urandom(32))
    # Bound as long as the job is there: nobody else is given it, and who may use it again may listen there.
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    meeting = held.getsockname()[1]
    targets = [lambda rank=rank: int((directory / f"port.{rank}").read_text()) for rank in range(SIZE)]
    env = {
        "RINGCORE_TRANSPORT": "tcp", "RINGCORE_ENCRYPTION": "on", "RINGCORE_KEY_FILE": str(directory / "key"),
        "RINGCORE_HEARTBEAT_S": "1", "RINGCORE_TIMEOUT_S": "10", "RINGCORE_START_TIMEOUT_S": "5",
    }  # fmt: skip
    with held, middle([*targets, lambda: meeting], idle_s) as between:

        def wrap(rank: int, command: list[str]) -> list[str]:
            port = meeting if rank == 0 else between.ports[SIZE]
            return ["env", f"RINGCORE_RENDEZVOUS=tcp:127.0.0.1:{port}", *command]

        with ranks.started(work, SIZE, directory, *arguments, between.ports[:SIZE], env=env, wrap=wrap) as job:
            yield between, job


def play(between: Middle, job: ranks.Ranks, number: int, tamper: Tamper) -> int:
    """One round; returns the bytes that were carried."""
    job.await_mark(f"ready.{number}", *range(SIZE))
    # The last words of the round before would otherwise be taken for some of this one, though nobody reads them.
    between.await_end()
    between.tamper, before = tamper, between.carried
    job.mark(f"go.{number}")
    job.await_mark(f"ready.{number + 1}", *range(SIZE))
    return between.carried - before


def named(message: str) -> set[int]:
    """The ranks that a message speaks of."""
    groups = re.findall(r"ranks? \[?((?:\d+(?:, | and )?)+)", message)
    return {int(number) for group in groups for number in re.findall(r"\d+", group)}


def problem_of(tampering: Tampering, outcomes: list[dict[str, Any]]) -> str | None:
    """What is wrong with what the ranks have made of a round; outcomes are of `caught`."""
    rights = [outcome["message"] == "returned 'right'" for outcome in outcomes]
    if all(rights):  # The handshake was repeated, or TLS gives no meaning to what was changed.
        return "nobody noticed" if tampering.in_data else None
    if any(rights):
        return "not all have noticed"
    for rank, outcome in enumerate(outcomes):
        ranks_said = named(outcome["message"])
        if outcome["type"] not in ERRORS:
            return f"no error of ours on rank {rank}"
        # In a handshake nobody may have heard of it: who waits says who is missing.
        if tampering.in_data and not set(tampering.ranks or ()) <= ranks_said:
            return f"the error of rank {rank} does not name both"
        if not ranks_said:
            return f"the error of rank {rank} names no rank"
    return None


def tampered(directory: Path, numbers: range) -> list[tuple[Tampering, list[dict[str, Any]]]]:
    """What a job makes of rounds that are changed, after one that is not."""
    directory.mkdir()
    with job_behind_a_middle(directory, works_behind_a_middle, len(numbers) + 1) as (between, job):
        total = play(between, job, 0, carry)
        tamperings = []
        for turn, number in enumerate(numbers, 1):
            most = HANDSHAKES if turn % 2 else int(PART * total)
            tamperings.append(Tampering(number, most))
            play(between, job, turn, tamperings[-1])
        results = [outcome.result for outcome in job.wait()]
    untouched, *rounds = map(list, zip(*results, strict=True))
    assert [outcome["message"] for outcome in untouched] == ["returned 'right'"] * SIZE
    return list(zip(tamperings, rounds, strict=True))


def test_whatever_is_changed_between_ranks_is_an_error_on_all_or_changes_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(JOBS) as jobs:
        numbers = [range(first, ROUNDS, JOBS) for first in range(JOBS)]
        folders = [tmp_path / str(first) for first in range(JOBS)]
        rounds = [played for job in jobs.map(tampered, folders, numbers) for played in job]
    assert len(rounds) == ROUNDS
    problems = []
    for tampering, outcomes in rounds:
        problem = problem_of(tampering, outcomes)
        if problem is not None:
            said = "\n".join(f"  {outcome['type']}: {outcome['message']}" for outcome in outcomes)
            problems.append(f"{tampering}: {problem}\n{said}")
    assert not problems, "\n".join(problems)
    assert sum(outcomes[0]["type"] is not None for _, outcomes in rounds) > ROUNDS // 4


def test_nobody_in_between_talks_ranks_out_of_encryption(tmp_path: Path) -> None:
    seen = bytearray()

    def strip_and_read(way: Way, data: bytes) -> bytes:
        seen.extend(data)
        return strip_encryption(way, data)

    with job_behind_a_middle(tmp_path, works_behind_a_middle, 2) as (between, job):
        play(between, job, 0, strip_and_read)
        play(between, job, 1, carry)
        stripped, untouched = zip(*(outcome.result for outcome in job.wait()), strict=True)
    for outcome in stripped:
        assert outcome["type"] in names_below(ringcore.BootstrapError), outcome
        assert len(named(outcome["message"])) >= 2, outcome
    assert bytes(np.arange(4, dtype=np.float32)) not in seen
    assert [outcome["message"] for outcome in untouched] == ["returned 'right'"] * SIZE


IDLE_S = 4.0


def pauses(elements: int, ports: list[int]) -> dict:
    from support.rank import listen_behind, sums_rightly

    listen_behind(ports)
    ringcore.init()
    right = sums_rightly(elements)
    time.sleep(2.5 * 4.0)  # what the test is about: nobody has anything to say
    return {"before": right, "after": caught(sums_rightly, elements)}


def test_heartbeats_keep_connections_through_who_cuts_idle_ones(tmp_path: Path) -> None:
    # What is small goes with control, where hearts beat.
    with job_behind_a_middle(tmp_path, pauses, 3, idle_s=IDLE_S) as (between, job):
        results = [outcome.result for outcome in job.wait()]
    assert not between.cut_idle
    for result in results:
        assert result["before"] is True
        assert result["after"]["message"] == "returned True", result


@pytest.mark.long  # ten seconds more without a word
def test_an_idle_connection_that_is_cut_is_an_error_on_all_that_names_two(tmp_path: Path) -> None:
    with job_behind_a_middle(tmp_path, pauses, 1 << 20, idle_s=IDLE_S) as (between, job):
        results = [outcome.result for outcome in job.wait()]
    # Of a lane for data the kernel says that it is there (SO_KEEPALIVE), which who relays bytes does not hear.
    assert between.cut_idle
    for result in results:
        assert result["before"] is True
        assert result["after"]["type"] == "PeerLostError", result
        assert len(named(result["after"]["message"])) >= 2, result
