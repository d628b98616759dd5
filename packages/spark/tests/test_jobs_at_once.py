"""Several jobs of several ranks at the same time in one cluster; one that has more slots than this folder's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import sparks

SCRIPT = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
import ringcore_spark
import pytest
from support import sparks

folder = sys.argv[1]
spark = sparks.start(slots=4)

def together(folder, job, ranks):
    import ringcore as ring
    ring.init()
    Path(folder, f"{job}.{ring.rank()}").touch()
    while len(list(Path(folder).iterdir())) < ranks:
        time.sleep(0.01)
    total = ring.allreduce(np.full(1 << 16, 10.0 ** job), op=ring.Sum)
    assert (total == total[0]).all()
    return ring.rank(), ring.size(), float(total[0])

def run(where, job, ranks):
    return ringcore_spark.run(together, (where, job, ranks), num_proc=2, spark=spark)

def expect(jobs, results):
    wanted = [[(rank, 2, 2 * 10.0 ** job) for rank in range(2)] for job in jobs]
    assert results == wanted, results

with ThreadPoolExecutor(3) as pool:
    # All four ranks wait for each other: neither job has the ranks of both, and both run at the same time.
    expect([0, 1], list(pool.map(lambda job: run(f"{folder}/both", job, 4), [0, 1])))
    # There are slots for two of them: the third waits for those.
    expect([0, 1, 2], list(pool.map(lambda job: run(f"{folder}/more", job, 2), [0, 1, 2])))
spark.stop()
print("all well")
"""


@pytest.mark.long
def test_jobs_at_once_do_not_find_each_other_and_wait_for_slots(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "both").mkdir()
    (tmp_path / "more").mkdir()
    done = subprocess.run(
        [sys.executable, "script.py", str(tmp_path)], cwd=tmp_path, text=True, capture_output=True, timeout=600,
        check=False, env=os.environ | sparks.ENVIRON,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all well"
