"""Executors one after the other, and a raylet and a driver that are killed: `nox -s cluster_long` runs this."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.cluster_utils import Cluster
from ringcore_ray import RankError, RingExecutor
from support.processes import WRITE_PID, Pids, eventually, is_alive


def total() -> tuple[int, float]:
    import ringcore as ring

    ring.init()
    return ring.rank(), float(ring.allreduce(np.full(1 << 18, 1.0), op=ring.Sum)[0])


def waits(folder: str) -> None:
    import ringcore as ring

    ring.init()
    os.chdir(folder)
    namespace: dict[str, Any] = {}
    exec(WRITE_PID, namespace)
    namespace["write_pid"](ring.rank())
    ring.barrier()
    if ring.rank() == 1:
        time.sleep(1000)
    ring.allreduce(np.ones(10))


def test_fifteen_executors_leave_nothing() -> None:
    before = sorted(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    for number in range(15):
        with RingExecutor(num_workers=2) as executor:
            assert executor.run(total) == [(0, 2.0), (1, 2.0)]
            pids = executor.run(os.getpid)
        eventually(lambda pids=pids: not any(map(is_alive, pids)), "the actors have ended", 30)
        if number == 2:
            before = sorted(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    eventually(lambda: sorted(os.listdir("/dev/shm")) == before[0], "no file in memory is left", 30)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before[1] + 2, "no descriptor is left", 30)


SCRIPT = """
import os, sys
import ray
from ringcore_ray import RingExecutor
from test_faults import waits

variables = {"PYTHONPATH": os.environ["PYTHONPATH"]}
ray.init(sys.argv[1], log_to_driver=False, configure_logging=False, runtime_env={"env_vars": variables})
with RingExecutor(num_workers=2) as executor:
    executor.run(waits, args=[sys.argv[2]])
"""


def test_actors_end_with_a_driver_that_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[4] / "tests")])
    driver = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", cluster.address, str(tmp_path)], env=os.environ | {"PYTHONPATH": paths}
    )
    try:
        pids = Pids(tmp_path).wait(2)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    eventually(lambda: not any(map(is_alive, pids.values())), "no rank is left", 60)


def test_a_raylet_that_is_killed_is_a_lost_rank(cluster: Cluster, tmp_path: Path) -> None:
    """The last test: the cluster has one raylet then."""
    took = []

    def kill() -> None:
        Pids(tmp_path).wait(2)
        took.append(time.monotonic())
        (other,) = cluster.worker_nodes
        cluster.remove_node(other, allow_graceful=False)

    killer = threading.Thread(target=kill)
    with RingExecutor(num_hosts=2, num_workers_per_host=1) as executor:
        killer.start()
        with pytest.raises(RankError, match=r"rank [01]"):
            executor.run(waits, args=[str(tmp_path)])
        print(f"the error came {time.monotonic() - took[0]:.2f} s after the raylet was killed")
    killer.join()
    eventually(lambda: not any(map(is_alive, Pids(tmp_path).read().values())), "no rank is left", 60)
