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


def sums_registered_memory(address_bytes: int, buffer_bytes: int) -> dict:
    import resource

    from ringcore import adapter

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + address_bytes, resource.RLIM_INFINITY))
    start = caught(ringcore.init)
    if start["type"] is not None:
        return start
    memory = adapter.allocate(buffer_bytes)
    registered = np.frombuffer(memory.view(), np.float32)
    registered[:] = 1
    small = [np.ones(1000, np.float32) for _ in range(20)]
    for step in range(3):
        outcome = caught(ringcore.allreduce_, registered, name="registered", op=ringcore.Max if step else ringcore.Sum)
        if outcome["type"] is not None:
            return outcome
        ringcore.grouped_allreduce(small, name="packed")
    return {"type": None, "sums": [float(registered.min()), float(registered.max())]}


def test_address_space_may_be_limited(tmp_path: Path) -> None:
    # Eight ranks see 24 MiB of each other and what they need to speak, not eight times the machine's memory.
    for result in ranks.run(sums_registered_memory, 8, tmp_path, 3 << 30, 24 << 20):
        assert result == {"type": None, "sums": [8.0, 8.0]}


def test_too_little_address_space_is_an_error_that_says_what_to_set(tmp_path: Path) -> None:
    # Of 600 MiB a rank has an arena and its rings, but no place for 128 MiB of seven others.
    env = {"RINGCORE_ARENA_BYTES": str(200 << 20), "RINGCORE_FUSION_THRESHOLD_BYTES": str(1 << 20)}
    for result in ranks.run(sums_registered_memory, 8, tmp_path, 600 << 20, 128 << 20, env=env):
        assert result["type"] == "ResourceError", result
        assert "ulimit -v" in result["message"]


def test_an_arena_smaller_than_its_fusion_buffers_is_refused_with_the_remedy(tmp_path: Path) -> None:
    env = {"RINGCORE_ARENA_BYTES": str(100 << 20)}
    for result in ranks.run(sums_registered_memory, 2, tmp_path, 8 << 30, 1 << 20, env=env):
        assert result["type"] == "ResourceError", result
        assert f"Set RINGCORE_ARENA_BYTES to more than {3 * (64 << 20)}" in result["message"]


SUM = """
import numpy, ringcore
ringcore.init()
print(ringcore.allreduce(numpy.ones(1 << 23, numpy.float32), op=ringcore.Sum)[-1])
"""


@pytest.mark.parametrize("transport", ["auto", pytest.param("tcp", marks=pytest.mark.long)])
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
