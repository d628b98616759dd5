"""Executors one after the other, and a raylet and a driver that are killed: `nox -s cluster_long` runs this."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from ray.cluster_utils import Cluster
from ringcore_ray import RankError, RingExecutor
from support.processes import WRITE_PID, Pids, eventually, is_alive
from support.sockets import listening_below


def total() -> tuple[int, float]:
    import ringcore as ring

    ring.init()
    return ring.rank(), float(ring.allreduce(np.full(1 << 18, 1.0), op=ring.Sum)[0])


def waits(folder: str, moment: str = "allreduce", who: int = 1) -> None:
    """One rank gets no further than this moment, and the other waits for it."""
    import ringcore as ring

    rank = int(os.environ["RINGCORE_RANK"])
    os.chdir(folder)
    namespace: dict[str, Any] = {}
    exec(WRITE_PID, namespace)
    namespace["write_pid"](rank)
    if moment == "start" and rank == who:
        time.sleep(1000)
    ring.init()
    if rank == who:
        time.sleep(1000)
    ring.allreduce(np.ones(10))


def sockets() -> Counter[int]:
    """On how many the driver and each of the cluster's processes listens; not those that wait for work."""
    found = Counter(pid for pid, _ in listening_below(os.getpid()))
    return Counter({pid: count for pid, count in found.items() if not waits_for_work(pid)})


def waits_for_work(pid: int) -> bool:
    try:
        return b"ray::IDLE" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # It has ended.
        return True


def test_fifty_executors_leave_nothing_and_take_no_longer() -> None:
    times = []
    for number in range(-3, 50):
        begin = time.monotonic()
        with RingExecutor(num_workers=2) as executor:
            assert executor.run(total) == [(0, 2.0), (1, 2.0)]
            pids = executor.run(os.getpid)
        times.append(time.monotonic() - begin)
        eventually(lambda pids=pids: not any(map(is_alive, pids)), "the actors have ended", 30)
        if number < 0:  # Ray still starts processes of its own.
            del times[:]
            files, descriptors, before = sorted(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd")), sockets()
    assert os.getpid() in before and len(before) > 3, "the driver, the control service and the raylets listen"
    eventually(lambda: sorted(os.listdir("/dev/shm")) == files, "no file in memory is left", 30)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 2, "no descriptor is left", 30)
    eventually(lambda: sockets() <= before, "no process listens on a further socket", 60)
    first, last = median(times[:10]), median(times[-10:])
    print(f"seconds of an executor, the first and the last ten: {first:.2f}, {last:.2f}")
    assert last < 2 * first


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("moment", ["start", "allreduce"])
def test_an_actor_that_is_killed_is_the_error_and_restart_replaces_it(tmp_path: Path, moment: str, who: int) -> None:
    took = []

    def kill() -> None:
        pid = Pids(tmp_path).wait(2)[str(who)]
        took.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    with RingExecutor(num_workers=2) as executor:
        killer.start()
        with pytest.raises(RankError, match=f"rank {who} raised ActorDiedError: its actor has died"):
            executor.run(waits, args=[str(tmp_path), moment, who])
        print(f"the error came {time.monotonic() - took[0]:.2f} s after the actor of rank {who} was killed")
        killer.join()
        executor.restart()
        assert executor.run(total) == [(0, 2.0), (1, 2.0)]
    eventually(lambda: not any(map(is_alive, Pids(tmp_path).read().values())), "no rank is left", 60)


SCRIPT = """
import os, sys
import ray
from ringcore_ray import RingExecutor
from test_faults import waits

variables = {"PYTHONPATH": os.environ["PYTHONPATH"]}
ray.init(sys.argv[1], log_to_driver=False, configure_logging=False, runtime_env={"env_vars": variables})
with RingExecutor(num_workers=2) as executor:
    executor.run(waits, args=sys.argv[2:])
"""


@pytest.mark.parametrize("moment", ["start", "allreduce"])
def test_actors_end_with_a_driver_that_is_killed(cluster: Cluster, tmp_path: Path, moment: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[4] / "tests")])
    driver = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", cluster.address, str(tmp_path), moment],
        env=os.environ | {"PYTHONPATH": paths},
    )
    try:
        pids = Pids(tmp_path).wait(2)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    eventually(lambda: not any(map(is_alive, pids.values())), "no rank is left", 60)


@pytest.mark.parametrize("moment", ["start", "allreduce"])
def test_a_raylet_that_is_killed_is_a_lost_rank(cluster: Cluster, second: Any, tmp_path: Path, moment: str) -> None:
    took = []

    def kill() -> None:
        Pids(tmp_path).wait(2)
        took.append(time.monotonic())
        cluster.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill)
    with RingExecutor(num_hosts=2, num_workers_per_host=1) as executor:
        killer.start()
        with pytest.raises(RankError, match=r"rank [01]"):
            executor.run(waits, args=[str(tmp_path), moment])
        print(f"the error came {time.monotonic() - took[0]:.2f} s after the raylet was killed")
    killer.join()
    eventually(lambda: not any(map(is_alive, Pids(tmp_path).read().values())), "no rank is left", 60)


def goes_on(folder: str, moment: str) -> dict[str, Any]:
    """Adds up ones until half of the ranks are lost."""
    import ringcore as ring
    from ringcore import elastic

    os.chdir(folder)
    namespace: dict[str, Any] = {}
    exec(WRITE_PID, namespace)
    if moment == "start":
        namespace["write_pid"](os.getpid())
        while not Path("killed").exists():
            time.sleep(0.01)
    ring.init()
    engines = set()

    @elastic.run
    def steps(state: Any) -> dict[str, Any]:
        engines.add(ring.job.state.context().began)
        while True:
            if moment == "allreduce":
                namespace["write_pid"](os.getpid())
            state.total += float(ring.allreduce(np.ones(3), op=ring.Sum)[0])
            state.commit()
            if ring.size() == 2:
                return {"pid": os.getpid(), "place": (ring.rank(), ring.size()), "engines": len(engines)}

    return steps(elastic.ObjectState(total=0.0))


def ancestors(pid: int) -> set[int]:
    found = set()
    while pid > 1:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


@pytest.mark.parametrize("moment", ["start", "allreduce"])
def test_a_raylet_that_is_killed_costs_no_restart_of_an_elastic_job(
    cluster: Cluster, second: Any, tmp_path: Path, moment: str
) -> None:
    (raylet,) = second.all_processes["raylet"]
    stay: list[int] = []

    def kill() -> None:
        pids = Pids(tmp_path).wait(4).values()
        stay.extend(pid for pid in pids if raylet.process.pid not in ancestors(pid))
        cluster.remove_node(second, allow_graceful=False)
        (tmp_path / "killed").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    with RingExecutor(min_workers=2, max_workers=4, num_workers=4) as executor:
        ranks = executor.run(goes_on, args=[str(tmp_path), moment])
    killer.join()
    assert sorted(rank["pid"] for rank in ranks) == sorted(stay) and len(stay) == 2
    assert [rank["place"] for rank in ranks] == [(0, 2), (1, 2)]
    assert [rank["engines"] for rank in ranks] == [1, 1], "they have kept their connections"
    eventually(lambda: not any(map(is_alive, Pids(tmp_path).read().values())), "no rank is left", 60)
