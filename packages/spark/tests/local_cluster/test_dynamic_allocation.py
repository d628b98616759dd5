"""Executors that Spark makes when there are tasks for them, and elastic jobs that take them in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, signal, sys, threading
from pathlib import Path
import numpy as np
import ringcore_spark
from pyspark.sql import SparkSession
from support.processes import WRITE_PID, Pids, eventually, is_alive

folder = Path(sys.argv[1])
settings = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.executor.cores": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
    "spark.ui.enabled": "false",
}
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
scala = spark.sparkContext._jsc.sc()

def slots():
    return scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile())

def train(folder):
    import ringcore as ring
    from ringcore import elastic
    os.chdir(folder)
    names = {}
    exec(WRITE_PID, names)
    ring.init()

    @elastic.run
    def steps(state):
        names["write_pid"](os.getpid())
        state.begun = state.begun or ring.size()
        while True:
            state.sum += float(ring.allreduce(np.ones(3), op=ring.Sum)[0])
            state.commit()
            if ring.allreduce(np.array([os.path.exists("stop")]), op=ring.Min)[0] and ring.size() == 2:
                return {"pid": os.getpid(), "begun": state.begun, "sum": state.sum}

    return steps(elastic.ObjectState(sum=0.0, begun=0))

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def executor_of(pid):
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = parent(pid)
    return pid

def kill():
    (first,) = Pids(folder).wait(1).values()
    # Tasks without a slot are what Spark makes executors for.
    pids.update(Pids(folder).wait(2))
    assert slots() == 2, slots()
    second = next(pid for pid in pids.values() if pid != first)
    os.kill(executor_of(second), signal.SIGKILL)
    pids.update(Pids(folder).wait(3))
    stayed.append(first)
    (folder / "stop").touch()

eventually(lambda: slots() == 1, "the first executor is there", 300)
try:
    ringcore_spark.run(train, (str(folder),), num_proc=1, spark=spark)
except ValueError as error:
    assert "spark.dynamicAllocation.enabled is true" in str(error) and "elastic=True" in str(error), error
else:
    raise AssertionError("a barrier stage with dynamic allocation")
pids, stayed = {}, []
killer = threading.Thread(target=kill)
killer.start()
# It begins with the one slot that there is.
ranks = ringcore_spark.run(train, (str(folder),), num_proc=1, min_num_proc=1, max_num_proc=2, elastic=True)
killer.join()
assert [rank["begun"] for rank in ranks] == [1, 1], ranks
assert ranks[0]["sum"] == ranks[1]["sum"], ranks
assert stayed[0] in [rank["pid"] for rank in ranks], (ranks, stayed)
eventually(lambda: not any(map(is_alive, Pids(folder).read().values())), "no rank is left", 30)
spark.stop()
print("all well")
"""


def test_an_elastic_job_grows_with_the_executors_that_spark_makes_and_outlives_one(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "ranks").mkdir()
    done = subprocess.run(
        [sys.executable, "script.py", str(tmp_path / "ranks")], cwd=tmp_path, text=True, capture_output=True,
        timeout=900, check=False,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all well"
