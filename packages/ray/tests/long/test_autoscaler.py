"""A cluster that Ray's autoscaler makes larger: what it has not got is waited for, and comes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import eventually, is_alive
from test_faults import descendants

# The name that Ray's provider for tests has for the node that is there.
HEAD_ID, HEAD_TYPE = "f" * 51 + "00000", "ray.head.default"
SCRIPT = """
import os, sys, threading
import ray
from ringcore_ray import RingExecutor
from ringcore_ray.room import may_grow
from support.processes import eventually
from test_faults import total

variables = {"PYTHONPATH": os.environ["PYTHONPATH"]}
ray.init(sys.argv[1], log_to_driver=False, configure_logging=False, runtime_env={"env_vars": variables})
eventually(lambda: may_grow() is not None, "Ray's monitor says what it does")
assert may_grow(), "it is an autoscaler"
assert ray.cluster_resources()["CPU"] == 1
with RingExecutor(num_workers=2, placement_timeout_s=300) as executor:
    print(executor.run(total))
"""


@pytest.fixture(params=["1", "2"])
def growing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a cluster of one core, to which an autoscaler of this version may add another node."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    address = f"127.0.0.1:{port}"
    (tmp_path / "autoscaling.json").write_text(json.dumps(configuration(address)))
    head = subprocess.Popen(
        [
            Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1",
            f"--port={port}", "--num-cpus=1", f"--object-store-memory={100 << 20}", "--include-dashboard=false",
            "--disable-usage-stats", f"--autoscaling-config={tmp_path / 'autoscaling.json'}",
        ],
        env=os.environ | {
            "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID, "RAY_NODE_TYPE_NAME": HEAD_TYPE,
            "RAY_enable_autoscaler_v2": str(int(request.param == "2")),
        },
    )  # fmt: skip
    try:
        eventually(lambda: answers(port), "Ray's control service listens")
        yield address
    finally:
        everybody = descendants(head.pid)
        os.kill(head.pid, signal.SIGTERM)
        head.wait()
        for pid in filter(is_alive, everybody):  # The nodes that the autoscaler has brought do not end with it.
            os.kill(pid, signal.SIGKILL)


def configuration(address: str) -> dict[str, Any]:
    worker = {"resources": {"CPU": 1, "object_store_memory": 100 << 20}, "node_config": {}, "max_workers": 1}
    commands = ("setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray", "initialization")
    return {
        "cluster_name": "growing", "max_workers": 1, "idle_timeout_minutes": 5, "upscaling_speed": 1.0,
        "provider": {
            "type": "fake_multinode", "gcs_address": address, "head_node_id": HEAD_ID, "launch_multiple": True,
            "use_node_id_as_ip": True, "disable_node_updaters": True, "disable_launch_config_check": True,
        },
        "auth": {}, "docker": {}, "file_mounts": {}, "rsync_exclude": [], "rsync_filter": [],
        "cluster_synced_files": [], "file_mounts_sync_continuously": False, "head_node_type": HEAD_TYPE,
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0}, "worker": worker,
        },
        **{f"{name}_commands": [] for name in commands},
    }  # fmt: skip


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_what_an_autoscaler_may_bring_is_waited_for(growing: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[4] / "tests")])
    told = subprocess.run(
        [sys.executable, tmp_path / "script.py", growing], env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert told.stdout.splitlines()[-1:] == ["[(0, 2.0), (1, 2.0)]"], told.stderr
