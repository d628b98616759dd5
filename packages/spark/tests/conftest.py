"""A real Spark for the tests of this folder, started once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture
def bucket() -> Iterator[Any]:
    """The file system of a server that speaks S3, with one bucket. No Hadoop of Spark's knows it."""
    from moto.server import ThreadedMotoServer
    from pyarrow.fs import S3FileSystem

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    made = S3FileSystem(
        endpoint_override=f"{host}:{port}", scheme="http", access_key="some", secret_key="thing",
        allow_bucket_creation=True,
    )  # fmt: skip
    made.create_dir("data")
    yield made
    made.delete_dir_contents("data")  # The next server of this process has the same buckets.
    server.stop()
