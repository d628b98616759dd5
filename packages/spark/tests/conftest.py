"""A real Spark for the tests of this folder, started once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from support.processes import eventually

# `nox -s local_cluster` names the other one: executors with a Java of their own.
MASTER = os.environ.get("RINGCORE_TEST_MASTER", "local[2]")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    session = (
        SparkSession.builder.master(MASTER)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(sys.path))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    scala = session.sparkContext._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    eventually(lambda: scala.maxNumConcurrentTasks(profile) == 2, "both executors are there", 300)
    yield session
    session.stop()
