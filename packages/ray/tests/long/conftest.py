"""A cluster of two raylets, in place of the one that other tests have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

TESTS = str(Path(__file__).parents[4] / "tests")


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[Cluster]:
    nodes = {"num_cpus": 2, "object_store_memory": 100 << 20}
    made = Cluster(initialize_head=True, head_node_args={**nodes, "include_dashboard": False})
    made.add_node(**nodes)
    path = os.pathsep.join([TESTS, str(Path(__file__).parent)])
    ray.init(made.address, log_to_driver=False, configure_logging=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    yield made
    ray.shutdown()
    made.shutdown()
