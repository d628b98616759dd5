"""`ringcore_spark.run(..., elastic=True)`: ranks come and go as Spark's tasks do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringcore_spark
from pyspark.sql import SparkSession
from ringcore_spark import RankError

# Py4J's own sockets, and what Spark says of versions of pandas.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def train(folder: str, size: int) -> dict[str, Any]:
    """Adds up ones, a commit a step, until so many ranks are there; once, rank 1 is killed at the fifth step."""
    import ringcore as ring
    from ringcore import elastic

    ring.init()
    engines = set()

    @elastic.run
    def steps(state: Any) -> dict[str, Any]:
        engines.add(ring.job.state.context().began)
        while state.step < 10 or ring.size() < size:
            if (ring.rank(), state.step) == (1, 5):
                try:
                    os.close(os.open(f"{folder}/killed", os.O_CREAT | os.O_EXCL))
                    os.kill(os.getpid(), signal.SIGKILL)
                except FileExistsError:
                    pass
            state.total += float(ring.allreduce(np.ones(3), op=ring.Sum)[0])
            state.step += 1
            state.commit()
        return {"place": (ring.rank(), ring.size()), "engines": len(engines), "sum": (state.step, state.total)}

    return steps(elastic.ObjectState(step=0, total=0.0))


def test_a_rank_that_is_killed_is_replaced_while_the_other_goes_on(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    survivor, newcomer = ringcore_spark.run(train, (str(tmp_path), 2), num_proc=2, min_num_proc=1, elastic=True)
    assert (survivor["place"], newcomer["place"]) == ((0, 2), (1, 2))
    assert survivor["engines"] == 1, "it has kept its process and its connections"
    assert survivor["sum"] == newcomer["sum"]
    assert "was killed by SIGKILL" in capsys.readouterr().err
    # Tasks without a slot come when all is done, and end.
    ranks = ringcore_spark.run(train, (str(tmp_path), 2), min_num_proc=1, max_num_proc=5, elastic=True)
    assert [rank["place"] for rank in ranks] == [(0, 2), (1, 2)]


def fails() -> None:
    raise LookupError("no such row")


def test_what_all_raise_is_the_error(spark: SparkSession) -> None:
    with pytest.raises(RankError, match="raised LookupError: no such row") as caught:
        ringcore_spark.run(fails, num_proc=2, min_num_proc=1, elastic=True)
    assert isinstance(caught.value.original, LookupError)


def test_what_cannot_be_elastic_is_said_before_anything_starts(spark: SparkSession) -> None:
    for options in ({"min_num_proc": 1}, {"max_num_proc": 4}, {"reset_limit": 1}, {"elastic_timeout": 9}):
        with pytest.raises(ValueError, match="are of elastic jobs: give elastic=True as well"):
            ringcore_spark.run(fails, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dataframe= deals its rows to fixed ranks"):
        ringcore_spark.run(fails, elastic=True, dataframe=spark.range(4))
    with pytest.raises(ValueError, match=r"3 ranks need as many slots .* the cluster has 2"):
        ringcore_spark.run(fails, elastic=True, min_num_proc=3)
    for least, most in ((3, 2), (0, 2)):
        with pytest.raises(ValueError, match=rf"not between min_num_proc={least} and max_num_proc={most}"):
            ringcore_spark.run(fails, elastic=True, min_num_proc=least, max_num_proc=most)


# Spark tries a task again only where its master says so, and a process has one master.
SCRIPT = """
import os, signal, sys, threading
from pathlib import Path
import numpy as np
import ringcore_spark
from pyspark.sql import SparkSession
from support.processes import WRITE_PID, Pids, eventually

folder = Path(sys.argv[1])
spark = SparkSession.builder.master("local[3,4]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def train(folder):
    import ringcore as ring
    from ringcore import elastic
    os.chdir(folder)
    names = {}
    exec(WRITE_PID, names)
    ring.init()
    engines = set()

    @elastic.run
    def steps(state):
        engines.add(ring.job.state.context().began)
        names["write_pid"](os.getpid())
        while True:
            state.sum += float(ring.allreduce(np.ones(3), op=ring.Sum)[0])
            state.commit()
            if ring.allreduce(np.array([os.path.exists("stop")]), op=ring.Min)[0] and ring.size() == 3:
                return os.getpid(), ring.size(), len(engines), state.sum

    return steps(elastic.ObjectState(sum=0.0))

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def kill():
    pids.update(Pids(folder).wait(3))
    victim = min(pids.values())
    # Spark's worker has a zygote, that an agent, that the rank.
    os.kill(parent(parent(parent(victim))), signal.SIGKILL)
    eventually(lambda: len(Pids(folder).read()) > 3, "Spark has tried the task again")
    (folder / "stop").touch()

pids = {}
killer = threading.Thread(target=kill)
killer.start()
ranks = ringcore_spark.run(train, (str(folder),), num_proc=3, min_num_proc=1, elastic=True)
killer.join()
assert [size for _, size, _, _ in ranks] == [3, 3, 3], ranks
assert len({sum for *_, sum in ranks}) == 1, ranks
stayed = [engines for pid, _, engines, _ in ranks if pid in pids.values()]
assert stayed == [1, 1], ranks
spark.stop()
try:
    ringcore_spark.run(train, spark=spark)
except RuntimeError as error:
    assert "this Spark session has been stopped" in str(error), error
else:
    raise AssertionError("a job of a session that was stopped")
print("all well")
"""


@pytest.mark.long  # in each run a rank is killed and replaced
def test_a_worker_that_is_killed_is_replaced_by_the_next_attempt_of_its_task(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "ranks").mkdir()
    done = subprocess.run(
        [sys.executable, "script.py", str(tmp_path / "ranks")], cwd=tmp_path, text=True, capture_output=True,
        timeout=600, check=False,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all well"
