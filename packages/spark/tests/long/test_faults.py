"""Fifty jobs, and a driver that is killed: `nox -s cluster_long` runs this."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import ringcore_spark
from pyspark.sql import SparkSession
from support.processes import Pids, eventually, is_alive
from support.sockets import listening_below

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TESTS = str(Path(__file__).parents[4] / "tests")


def total() -> tuple[int, float]:
    import ringcore as ring

    ring.init()
    return ring.rank(), float(ring.allreduce(np.full(1 << 18, 1.0), op=ring.Sum)[0])


def leftovers() -> tuple[int, list[str], list[int], list[int]]:
    """Descriptors of this process, files in memory, processes of ranks, and what workers of Spark keep for the next."""
    processes = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    marked = [pid for pid in processes if b"RINGCORE_TEST_MARK=fifty" in read(pid, "environ")]
    kept = [pid for pid in marked if is_zygote(pid)]
    ranks = [pid for pid in marked if pid not in kept]
    return len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm")), sorted(ranks), sorted(kept)


def is_zygote(pid: int) -> bool:
    """Whether a worker of Spark keeps it for the next job; agents and ranks, its forks, have its command line."""
    parent = read(pid, "stat").rpartition(b")")[2].split()[1:2]
    return b"ringcore.launcher.external.zygote" in read(pid, "cmdline") and any(
        b"pyspark.daemon" in read(int(number), "cmdline") for number in parent
    )


def read(pid: int, name: str) -> bytes:
    """What /proc says of a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def test_fifty_jobs_leave_nothing_and_do_not_become_slower(spark: SparkSession) -> None:
    env = {"RINGCORE_TEST_MARK": "fifty"}
    ringcore_spark.run(total, env=env)
    eventually(lambda: leftovers()[2] == [], "the ranks of the first job have ended", 30)
    before, addresses = leftovers(), listening_below(os.getpid())
    assert addresses, "Spark's driver listens"
    assert len(before[3]) == 2, "each of the two tasks' workers keeps one"
    times = []
    for _ in range(50):
        begin = time.monotonic()
        assert ringcore_spark.run(total, env=env) == [(0, 2.0), (1, 2.0)]
        times.append(time.monotonic() - begin)
    first, last = np.median(times[:10]), np.median(times[-10:])
    print(f"seconds of a job, the first and the last ten: {first:.2f}, {last:.2f}")
    # The session has the machine to itself, and forty jobs of which each takes 2 % more than the last reach this bound.
    assert last < 2 * first
    eventually(lambda: leftovers()[0] <= before[0], "no descriptor is left", 30)
    eventually(lambda: leftovers()[1:] == before[1:], "no file or process is left, but for the same two", 30)
    eventually(lambda: listening_below(os.getpid()) <= addresses, "nobody listens at a further address", 30)


SCRIPT = """
import os, sys
from pathlib import Path
import ringcore_spark
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()

def waits():
    import os, time
    import numpy as np
    import ringcore as ring
    from support.processes import WRITE_PID
    os.chdir(sys.argv[1])
    namespace = {}
    exec(WRITE_PID, namespace)
    namespace["write_pid"](os.environ["RINGCORE_RANK"])
    if MOMENT == "start" and os.environ["RINGCORE_RANK"] == "0":
        time.sleep(1000)
    ring.init()
    if ring.rank() == 0:
        time.sleep(1000)
    ring.allreduce(np.ones(10))

ringcore_spark.run(waits, env={"PYTHONPATH": sys.argv[2]})
"""


@pytest.mark.parametrize("moment", ["start", "allreduce"])
def test_ranks_end_with_a_driver_that_is_killed(tmp_path: Path, moment: str) -> None:
    script = SCRIPT.replace("sys.argv[1]", repr(str(tmp_path))).replace("MOMENT", repr(moment))
    (tmp_path / "script.py").write_text(script)
    driver = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", str(tmp_path), TESTS], stdin=subprocess.DEVNULL,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    try:
        pids = Pids(tmp_path).wait(2)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    eventually(lambda: not any(map(is_alive, pids.values())), "no rank is left", 30)
