"""A real Spark for the tests of this folder, started once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.processes import eventually

# `nox -s local_cluster` names the other one: executors with a Java of their own.
MASTER = os.environ.get("RINGCORE_TEST_MASTER", "local[2]")


# What Spark asks for a worker's GPUs: the first that asks has number 0, the second number 1.
GPUS = """#!/bin/sh
mkdir "$0.taken" 2>/dev/null && own=0 || own=1
echo "{\\"name\\": \\"gpu\\", \\"addresses\\": [\\"$own\\"]}"
"""


def gpus(folder: Path) -> dict[str, str]:
    """Settings that give each of two executors a GPU, which is but a number. Executors in the driver have none."""
    if not MASTER.startswith("local-cluster"):
        return {}
    script = folder / "gpus"
    script.write_text(GPUS)
    script.chmod(0o755)
    found = {f"spark.{who}.resource.gpu.amount": "1" for who in ("worker", "executor", "task")}
    return {**found, "spark.worker.resource.gpu.discoveryScript": str(script)}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    session = (
        SparkSession.builder.master(MASTER)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(sys.path))
        .config(map=gpus(tmp_path_factory.mktemp("gpus")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    scala = session.sparkContext._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    eventually(lambda: scala.maxNumConcurrentTasks(profile) == 2, "both executors are there", 300)
    yield session
    session.stop()
