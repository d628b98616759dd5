"""Limits of the machine: found before they hurt, and named."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.processes import RINGRUN, clean_environ
from support.rank import caught


def starts_with_few_descriptors(soft: int, hard: int) -> dict:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    start = caught(ringcore.init)
    if start["type"] is None:
        ringcore.allreduce_(np.ones(1 << 16, np.float32))
    return {**start, "limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}


def test_the_limit_of_open_files_is_raised_as_far_as_needed(tmp_path: Path) -> None:
    for result in ranks.run(starts_with_few_descriptors, 2, tmp_path, 20, 4096):
        assert result["type"] is None, result
        assert 20 < result["limit"] < 4096


def test_too_few_open_files_are_named_before_anything_fails(tmp_path: Path) -> None:
    for result in ranks.run(starts_with_few_descriptors, 2, tmp_path, 24, 24):
        assert result["type"] == "BootstrapError"
        assert "only 24 are allowed" in result["message"]
        assert "ulimit -Hn" in result["message"]


SUM = """
import numpy, ringcore
ringcore.init()
print(ringcore.allreduce(numpy.ones(1 << 23, numpy.float32), op=ringcore.Sum)[-1])
"""


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_dev_shm_of_one_mebibyte_does_not_matter(transport: str) -> None:
    # The mount is this command's own: nobody else sees it.
    script = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    command = [*RINGRUN, "-np", "3", sys.executable, "-c", SUM]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *command],
        capture_output=True, text=True, timeout=300, check=False,
        env={**clean_environ(), "RINGCORE_TRANSPORT": transport},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3.0") == 3, done.stdout


def starts_again_and_again() -> list[list[int]]:
    def counts() -> list[int]:
        return [len(os.listdir("/proc/self/fd")), threading.active_count()]

    seen = []
    for _ in range(30):
        ringcore.init()
        ringcore.allreduce_(np.ones(1000, np.float32))
        ringcore.shutdown()
        seen.append(counts())
    return seen


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_init_and_shutdown_leave_nothing_open(tmp_path: Path, transport: str) -> None:
    for seen in ranks.run(starts_again_and_again, 2, tmp_path, env={"RINGCORE_TRANSPORT": transport}):
        assert seen[-1] == seen[2], seen
