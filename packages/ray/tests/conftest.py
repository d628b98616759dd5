"""A Ray cluster for the tests of this folder, started once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# What Ray starts finds the same modules; it reports nothing to anybody.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_TRAIN_V2_ENABLED"] = "1"

import ray


@pytest.fixture(scope="session", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = os.pathsep.join([str(Path(__file__).parents[3] / "tests"), str(Path(__file__).parent)])
    ray.init(
        "local",  # where another one was here, and has left its address
        num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False,
        object_store_memory=100 << 20, runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield
    ray.shutdown()
