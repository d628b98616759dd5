"""A cluster of two raylets, in place of the one that other tests have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

TESTS = str(Path(__file__).parents[4] / "tests")
# Of a machine that does other things as well.
START_LIMIT_S = 300.0
NODE = {"num_cpus": 2, "object_store_memory": 100 << 20}


def add_second(made: Cluster) -> None:
    """Start the other raylet; Ray itself waits for it for 30 s."""
    made.add_node(wait=False, **NODE)
    made.wait_for_nodes(START_LIMIT_S)


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[Cluster]:
    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    add_second(made)
    path = os.pathsep.join([TESTS, str(Path(__file__).parent)])
    ray.init(made.address, log_to_driver=False, configure_logging=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def second(cluster: Cluster) -> Any:
    """The raylet besides the first; another one where a test has killed it."""
    if not cluster.worker_nodes:
        add_second(cluster)
    (node,) = cluster.worker_nodes
    return node
