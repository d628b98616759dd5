"""`ringcore_spark.run` and an estimator over Spark Connect, where there is no SparkContext."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import sparks

# A process has a session over Connect or another one, so this is a process of its own.
SCRIPT = """
import os, sys, threading
from pathlib import Path
import numpy as np
import pytest
import ringcore_spark
from pyspark.sql import SparkSession
import pytest
from support import sparks
from support.processes import eventually

with pytest.raises(RuntimeError, match="there is no active Spark session"):
    ringcore_spark.run(print)
spark = SparkSession.builder.remote(sparks.master()).getOrCreate()
assert "connect" in type(spark).__module__

def total(value):
    import ringcore as ring
    ring.init()
    print("hello")
    return ring.rank(), ring.local_size(), float(ring.allreduce(np.full(9, value + ring.rank()), op=ring.Sum)[0])

def fails():
    raise LookupError("no such row")

# Where two executors come up meanwhile, Spark has the barrier stage wait for them.
assert ringcore_spark.run(total, (1.0,), num_proc=2) == [(0, 2, 3.0), (1, 2, 3.0)]
with pytest.raises(ringcore_spark.RankError, match="raised LookupError: no such row") as caught:
    ringcore_spark.run(fails, num_proc=2)
assert isinstance(caught.value.original, LookupError)
if sparks.HAS_EXECUTORS:
    with pytest.raises(ValueError, match="say how many ranks .num_proc=.: Spark does not tell"):
        ringcore_spark.run(total, (1.0,))
else:
    assert ringcore_spark.run(total, (1.0,)) == [(0, 2, 3.0), (1, 2, 3.0)]
    with pytest.raises(ValueError, match="3 ranks need as many slots at the same time, and the cluster has 2"):
        ringcore_spark.run(total, (1.0,), num_proc=3)

# Tasks that wait for slots do not end with their job: Spark is told to drop them.
folder = Path(sys.argv[1])

def occupies(batches):
    (folder / f"busy.{os.getpid()}").touch()
    threading.Event().wait()
    yield from batches

def occupy():
    with pytest.raises(Exception, match="(?i)cancel"):
        spark.range(0, 2, 1, 2).mapInArrow(occupies, "id long").collect()

other = threading.Thread(target=occupy)
other.start()
eventually(lambda: len(list(folder.glob("busy.*"))) == 2, "the slots are taken", 120)
with pytest.raises(ringcore_spark.LaunchError, match="Spark Connect does not tell how many slots there are"):
    ringcore_spark.run(total, (1.0,), num_proc=2, start_timeout=2)
assert len(spark.interruptAll()) == 1, "only what occupies the slots was still running"
other.join()
assert ringcore_spark.run(total, (1.0,), num_proc=2) == [(0, 2, 3.0), (1, 2, 3.0)]

import torch
from ringcore_spark.torch import TorchEstimator

frame = spark.createDataFrame([(float(n), 2.0 * n) for n in range(-8, 8)], "x double, y double")
model = torch.nn.Linear(1, 1)
fitted = TorchEstimator(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.02), loss=torch.nn.MSELoss(), feature_cols=["x"],
    label_cols=["y"], input_shapes=[[-1, 1]], epochs=4, batch_size=4, store=sys.argv[1], num_proc=2, verbose=0,
).fit(frame)
for row in fitted.transform(frame).collect():
    assert abs(row["y__output"] - row["y"]) < 1
spark.stop()
print("all well")
"""


@pytest.mark.long
def test_a_session_over_connect(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "store").mkdir()
    done = subprocess.run(
        [sys.executable, "script.py", str(tmp_path / "store")], cwd=tmp_path, text=True, capture_output=True,
        timeout=600, check=False, env=os.environ | sparks.ENVIRON,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.rpartition("\r")[2] for line in done.stdout.splitlines()]
    assert lines[-1] == "all well"
    assert {"[0]<stdout> hello", "[1]<stdout> hello"} <= set(lines)
