"""The Spark of tests: threads of this process, or two executors with a Java of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from support.processes import eventually

# `nox -s local_cluster` names the other one.
HAS_EXECUTORS = os.environ.get("RINGCORE_TEST_MASTER", "local[2]").startswith("local-cluster")
# For scripts of tests, which start a Spark of their own by this module.
ENVIRON = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(Path(__file__).parents[1])}


def master(slots: int = 2) -> str:
    """The master of a Spark that runs so many tasks at the same time, an even number."""
    return f"local-cluster[2,{slots // 2},1024]" if HAS_EXECUTORS else f"local[{slots}]"


def start(slots: int = 2, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark, and wait until its executors are there."""
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    session = (
        SparkSession.builder.master(master(slots))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(sys.path))
        .config(map=dict(settings or {}))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    scala = session.sparkContext._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    eventually(lambda: scala.maxNumConcurrentTasks(profile) == slots, "all executors are there", 300)
    return session
