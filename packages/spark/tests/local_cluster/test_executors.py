"""What only a cluster can show: executors of their own, and one that is killed. `nox -s local_cluster` runs this."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringcore_spark
from pyspark.resource import (
    ExecutorResourceRequests,
    ResourceProfile,
    ResourceProfileBuilder,
    TaskResourceRequests,
)
from pyspark.sql import SparkSession
from ringcore_spark import RankError
from support.processes import WRITE_PID, Pids, eventually, is_alive

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def place(folder: str) -> tuple[int, int, float]:
    import ringcore as ring

    ring.init()
    os.chdir(folder)
    namespace: dict[str, Any] = {}
    exec(WRITE_PID, namespace)
    namespace["write_pid"](ring.rank())
    return ring.rank(), ring.local_size(), float(ring.allreduce(np.full(9, 1.0), op=ring.Sum)[0])


def waits(folder: str, moment: str) -> None:
    """Rank 0 gets no further than this moment, and the other waits for it."""
    import ringcore as ring

    if moment == "start":
        os.chdir(folder)
        namespace: dict[str, Any] = {}
        exec(WRITE_PID, namespace)
        namespace["write_pid"](os.environ["RINGCORE_RANK"])
        if os.environ["RINGCORE_RANK"] == "0":
            time.sleep(1000)
    place(folder)
    if ring.rank() == 0:
        time.sleep(1000)
    ring.allreduce(np.ones(10))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_of(pid: int) -> int:
    """The process of Java above a rank: its agent, Spark's Python worker and their daemon lie between."""
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = parent(pid)
    return pid


def test_resources_of_a_stage_are_counted_before_anything_starts(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"2 ranks need .* the cluster has 0: one for each share .* resources= says"):
        ringcore_spark.run(place, (str(tmp_path),), num_proc=2, resources={"cpus": 2})
    ranks = ringcore_spark.run(place, (str(tmp_path),), resources={"cpus": 1})
    assert ranks == [(0, 2, 2.0), (1, 2, 2.0)]


def test_a_rank_sees_the_gpu_of_its_task(spark: SparkSession) -> None:
    devices = ringcore_spark.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"], num_proc=2)
    assert sorted(devices) == ["0", "1"], "the executors' two, as the script of the test has told Spark"


def of_its_task() -> tuple[str, int]:
    """The GPUs that a rank sees, and the cores that it uses."""
    return os.environ["CUDA_VISIBLE_DEVICES"], int(os.environ["OMP_NUM_THREADS"])


def made_before_spark(requests: TaskResourceRequests) -> ResourceProfile:
    """A profile as it is where it was made before there was a session: Java knows nothing of it."""
    return ResourceProfile(_task_req=requests.requests)


@pytest.mark.parametrize("how", ["dictionary", "profile", "made before Spark"])
def test_ranks_have_what_resources_asks_for_their_tasks(spark: SparkSession, how: str) -> None:
    requests = TaskResourceRequests().cpus(1).resource("gpu", 1)
    profile = ResourceProfileBuilder().require(requests).build
    assert profile._java_resource_profile is not None
    given: dict[str, Any] = {
        "dictionary": {"cpus": 1, "gpu": 1}, "profile": profile, "made before Spark": made_before_spark(requests),
    }  # fmt: skip
    ranks = ringcore_spark.run(of_its_task, resources=given[how])  # as many as have a share
    assert sorted(ranks) == [("0", 1), ("1", 1)]


def test_resources_that_spark_cannot_give_are_said_before_anything_starts(spark: SparkSession) -> None:
    of_executors = ResourceProfileBuilder().require(ExecutorResourceRequests().resource("gpu", 1)).build
    for resources, why in (({"gpu": 2}, "gpu, amount: 1 needs to be >= .* 2"), (of_executors, "ynamic allocation")):
        with pytest.raises(
            ValueError, match=rf"Spark does not take resources= here: .*{why}.*no more than an executor"
        ):
            ringcore_spark.run(of_its_task, num_proc=2, resources=resources)


def goes_on(folder: str) -> tuple[int, int, int, float]:
    """Adds up ones until it is to stop and two ranks are there."""
    import ringcore as ring
    from ringcore import elastic

    ring.init()
    os.chdir(folder)
    namespace: dict[str, Any] = {}
    exec(WRITE_PID, namespace)
    namespace["write_pid"](ring.rank())
    engines = set()

    @elastic.run
    def steps(state: Any) -> tuple[int, int, int, float]:
        engines.add(ring.job.state.context().began)
        Path(f"begun.{os.getpid()}").touch()
        while True:
            state.total += float(ring.allreduce(np.ones(3), op=ring.Sum)[0])
            state.commit()
            if ring.allreduce(np.array([Path("stop").exists()]), op=ring.Min)[0] and ring.size() == 2:
                return os.getpid(), ring.size(), len(engines), state.total

    return steps(elastic.ObjectState(total=0.0))


def test_an_executor_that_is_killed_costs_no_restart_of_an_elastic_job(spark: SparkSession, tmp_path: Path) -> None:
    pids: dict[str, int] = {}

    def kill() -> None:
        pids.update(Pids(tmp_path).wait(2))
        eventually(lambda: len(list(tmp_path.glob("begun.*"))) == 2, "both train")
        os.kill(executor_of(pids["1"]), signal.SIGKILL)
        eventually(lambda: len(list(tmp_path.glob("begun.*"))) == 3, "Spark has brought another rank")
        (tmp_path / "stop").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    ranks = ringcore_spark.run(goes_on, (str(tmp_path),), num_proc=2, min_num_proc=1, elastic=True)
    killer.join()
    assert [size for _, size, _, _ in ranks] == [2, 2] and len({total for *_, total in ranks}) == 1
    assert ranks[0][0] == pids["0"] and ranks[0][2] == 1, "who is left has kept its process and its connections"
    eventually(lambda: not is_alive(pids["1"]), "no rank is left", 30)


@pytest.mark.parametrize("moment", ["start", "allreduce"])
def test_an_executor_that_is_killed_is_the_error_and_leaves_no_rank(
    spark: SparkSession, tmp_path: Path, moment: str
) -> None:
    assert spark.sparkContext.master.startswith("local-cluster")
    executors, killed_at = [], []

    def kill() -> None:
        pids = Pids(tmp_path).wait(2)
        executors.extend(executor_of(pids[name]) for name in "01")
        killed_at.append(time.monotonic())
        os.kill(executors[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RankError, match=r"its agent has gone"):
        ringcore_spark.run(waits, (str(tmp_path), moment), num_proc=2)
    print(f"the error came {time.monotonic() - killed_at[0]:.2f} s after the executor was killed")
    killer.join()
    assert len(set(executors)) == 2
    eventually(lambda: not any(map(is_alive, Pids(tmp_path).read().values())), "no rank is left", 30)
    scala = spark.sparkContext._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    eventually(lambda: scala.maxNumConcurrentTasks(profile) == 2, "Spark has another executor", 120)
    assert ringcore_spark.run(place, (str(tmp_path),)) == [(0, 2, 2.0), (1, 2, 2.0)]
