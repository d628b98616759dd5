"""What RINGCORE_LOG_LEVEL and --log-level let through, and who shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.processes import RINGRUN, clean_environ

# What is logged first at each level, by which it is known.
TELLS = {
    "trace": "Settings(",
    "debug": "rank 1, host 0, over shm",
    "info": "has started, placed by",
    "warning": "rank 1 did not submit it",
}


def waits_for_a_late_rank(configure: str) -> None:
    import logging

    if configure:
        logging.basicConfig(level=configure, format="mine: %(name)s %(message)s")
    ringcore.init()
    if ringcore.rank() == 1:
        time.sleep(0.5)  # long enough for a warning, which is about time
    ringcore.allreduce(np.ones(3, np.float32), name="late")


def said_by_rank_0(directory: Path, configure: str, **env: str) -> str:
    env = {"RINGCORE_STALL_WARNING_S": "0.1", "RINGCORE_TRANSPORT": "shm", **env}
    with ranks.started(waits_for_a_late_rank, 2, directory, configure, env=env) as job:
        outcomes = job.wait()
    assert [outcome.exit_code for outcome in outcomes] == [0, 0], outcomes
    return outcomes[0].stderr


@pytest.mark.parametrize("level", ["trace", "debug", "info", "warning", "error"])
def test_what_the_level_lets_through_goes_to_stderr(tmp_path: Path, level: str) -> None:
    said = said_by_rank_0(tmp_path, "", RINGCORE_LOG_LEVEL=level)
    order = [*TELLS, "error"]
    for name, text in TELLS.items():
        assert (text in said) == (order.index(name) >= order.index(level)), (name, said)


def test_a_program_that_configures_logging_shows_it_once_and_in_its_own_way(tmp_path: Path) -> None:
    said = said_by_rank_0(tmp_path, "INFO", RINGCORE_LOG_LEVEL="info")
    assert said.count("has started") == 1
    assert "mine: ringcore rank 0 of 2 has started" in said


def test_unset_the_program_decides(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert "has started" in said_by_rank_0(tmp_path / "a", "INFO")
    said = said_by_rank_0(tmp_path / "b", "")
    assert TELLS["info"] not in said and TELLS["warning"] in said


def test_ringrun_passes_the_level_on() -> None:
    command = [*RINGRUN, "-np", "2", "--log-level", "INFO", sys.executable, "-c", "import ringcore; ringcore.init()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=clean_environ())
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"ringcore info: rank {rank} of 2 has started, placed by ringrun" in done.stderr
