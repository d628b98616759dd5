"""A cluster that Ray's autoscaler makes larger: what it has not got is waited for, and comes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import descendants, eventually, is_alive

# Of this cluster; the one that other tests have has another.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex()}
# The name that Ray's provider for tests has for the node that is there.
HEAD_ID, HEAD_TYPE = "f" * 51 + "00000", "ray.head.default"
OF_HEAD = {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID, "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
SCRIPT = """
import os, sys
import ray
from ringcore_ray import RingExecutor
from ringcore_ray.room import may_grow
from support.processes import eventually
from test_faults import total

variables = {"PYTHONPATH": os.environ["PYTHONPATH"]}
ray.init(sys.argv[1], log_to_driver=False, configure_logging=False, runtime_env={"env_vars": variables})
eventually(lambda: may_grow() is not None, "Ray's monitor says what it does")
print(may_grow(), ray.cluster_resources()["CPU"])
with RingExecutor(num_workers=int(sys.argv[2]), placement_timeout_s=300) as executor:
    print(executor.run(total))
"""


@contextlib.contextmanager
def cluster_of_one_core(address: str, *options: str, **environ: str) -> Iterator[str]:
    """Started with these options of `ray start` and variables."""
    port = int(address.rpartition(":")[2])
    head = subprocess.Popen(
        [
            Path(sys.executable).with_name("ray"), "start", "--head", "--block", f"--port={port}", "--num-cpus=1",
            f"--object-store-memory={100 << 20}", "--include-dashboard=false", "--disable-usage-stats", *options,
        ],
        env=os.environ | TOKEN | OF_HEAD | environ,
    )  # fmt: skip
    try:
        eventually(lambda: answers(port), "Ray's control service listens")
        yield address
    finally:
        everybody = descendants(head.pid)
        head.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(60)
        for pid in filter(is_alive, everybody):  # The nodes that the autoscaler has brought do not end with it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        head.wait(60)


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


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def said(address: str, workers: int, folder: Path) -> list[str]:
    """What the script prints there."""
    (folder / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[4] / "tests")])
    told = subprocess.run(
        [sys.executable, folder / "script.py", address, str(workers)], env=os.environ | TOKEN | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return told.stdout.splitlines()


def test_what_an_autoscaler_may_bring_is_waited_for(tmp_path: Path) -> None:
    address = free_address()
    config = tmp_path / "autoscaling.json"
    config.write_text(json.dumps(configuration(address)))
    with cluster_of_one_core(address, f"--autoscaling-config={config}", RAY_FAKE_CLUSTER="1"):
        assert said(address, 2, tmp_path) == ["True 1.0", "[(0, 2.0), (1, 2.0)]"]


@pytest.mark.parametrize("named", [True, False])
def test_the_second_version_names_its_nodes(tmp_path: Path, named: bool) -> None:
    """Its own provider for tests is not in Ray's wheel; what it does to nodes is to give them this variable."""
    names = {"RAY_NODE_TYPE_NAME": HEAD_TYPE} if named else {}
    with cluster_of_one_core(free_address(), RAY_enable_autoscaler_v2="1", **names) as address:
        assert said(address, 1, tmp_path) == [f"{named} 1.0", "[(0, 1.0)]"]
