"""A real Spark for the tests of this folder, started once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support import sparks

# What Spark asks for a worker's GPUs: the first that asks has number 0, the second number 1.
GPUS = """#!/bin/sh
mkdir "$0.taken" 2>/dev/null && own=0 || own=1
echo "{\\"name\\": \\"gpu\\", \\"addresses\\": [\\"$own\\"]}"
"""


def gpus(folder: Path) -> dict[str, str]:
    """Settings that give each of two executors a GPU, which is but a number. Executors in the driver have none."""
    if not sparks.HAS_EXECUTORS:
        return {}
    script = folder / "gpus"
    script.write_text(GPUS)
    script.chmod(0o755)
    found = {f"spark.{who}.resource.gpu.amount": "1" for who in ("worker", "executor", "task")}
    return {**found, "spark.worker.resource.gpu.discoveryScript": str(script)}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = sparks.start(settings=gpus(tmp_path_factory.mktemp("gpus")))
    yield session
    session.stop()
