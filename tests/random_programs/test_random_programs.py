"""100 random programs on real processes, over every transport: each result is numpy's, each mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import ringcore
from support import mpis, ranks

# (transport, ranks, first seed, how many)
IN_EACH_RUN = [("shm", 3, 100, 15), ("tcp", 2, 200, 25)]
LONG = [("shm", 2, 0, 40), ("tcp", 3, 300, 10), ("MPICH", 2, 400, 10)]
JOBS = [*IN_EACH_RUN, *(pytest.param(job, marks=pytest.mark.long) for job in LONG)]
# A job is left, and joined again.
SEEDS_IN_A_JOB = 10


def run_programs(seeds: list[int], in_a_job: int) -> dict:
    from random_programs.runner import Runner

    failures: list[str] = []
    messages: list[tuple[str, str]] = []
    for number, seed in enumerate(seeds):
        if number % in_a_job == 0:
            ringcore.shutdown()
            ringcore.init()
        runner = Runner(seed)
        runner.run()
        failures += runner.failures
        messages += runner.messages
        if len(failures) > 20:
            break
    return {"failures": failures, "messages": messages}


@pytest.mark.parametrize("job", JOBS, ids=lambda job: "-".join(map(str, job[:2])))
def test_random_programs(tmp_path: Path, job: tuple[str, int, int, int]) -> None:
    transport, size, first, count = job
    run = mpis.installed(transport).run if transport in mpis.ALL else ranks.run
    env = {"RINGCORE_TRANSPORT": "mpi" if transport in mpis.ALL else transport, "RINGCORE_TIMEOUT_S": "60"}
    env["RINGCORE_HEARTBEAT_S"] = "20"  # on a busy machine a rank is silent for long
    results = run(run_programs, size, tmp_path, list(range(first, first + count)), SEEDS_IN_A_JOB, env=env)
    assert not [failure for result in results for failure in result["failures"]]
    told: dict[str, set[str]] = {}
    for result in results:
        for call, message in result["messages"]:
            told.setdefault(call, set()).add(message)
    assert told, "nobody has made a mistake"
    for messages in told.values():
        assert len(messages) == 1, messages
