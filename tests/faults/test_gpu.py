"""What goes wrong on GPUs, through the test double of CUDA and NCCL: every rank gets the same typed error, in time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import ranks
from support.gpu import double_environ
from support.processes import clean_environ


def reduce_until_it_fails(call_of_fault: int) -> dict:
    """Operations are done for the host when they are launched: an error of a GPU meets one of those that follow."""
    import os

    from support.gpu import GpuArray, to_host

    ringcore.init()
    tensor = GpuArray(np.ones(1000, np.float32))
    errors = []
    for step in range(call_of_fault):
        errors.append(caught(ringcore.allreduce_, tensor, op=ringcore.Sum, name=f"step {step}"))
    while errors[-1]["type"] is None:
        errors.append(caught(ringcore.barrier))
    # A rank that heard of the other's failure before its own call was made would meet the fault only afterwards.
    for fault in ("GPU_DOUBLE_FAIL", "GPU_DOUBLE_HANG"):
        os.environ.pop(fault, None)
    to_host(tensor)  # the stream runs again
    again = caught(ringcore.allreduce_, tensor, name="afterwards")
    ringcore.shutdown()
    ringcore.init()
    fresh = GpuArray(np.ones(1000, np.float32))
    ringcore.allreduce_(fresh, op=ringcore.Sum)
    return {"error": errors[-1], "again": again, "usable": float(to_host(fresh)[0])}


def outcomes(tmp_path: Path, fault: str, **env: str) -> list[dict]:
    environ = double_environ(**{fault: "3"}, **env)
    return ranks.run(reduce_until_it_fails, 2, tmp_path, 3, env=environ)


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("GPU_DOUBLE_FAIL", {"ResourceError", "PeerLostError"}, "NCCL error"),
        ("GPU_DOUBLE_HANG", {"TimeoutError"}, "'step 2' was launched on GPU"),
    ],
)
def test_a_failing_collective_fails_on_all_ranks(tmp_path: Path, fault: str, kind: set[str], text: str) -> None:
    results = outcomes(tmp_path, fault, RINGCORE_TIMEOUT_S="1")
    for result in results:
        assert result["error"]["type"] in kind, result
        assert text in result["error"]["message"]
        assert "Remedy" in result["error"]["message"]
        assert result["error"]["seconds"] < 10
        assert result["again"]["type"] == result["error"]["type"]
        assert result["usable"] == 2.0
    assert len({result["error"]["type"] for result in results}) == 1


def survive() -> dict:
    from support.gpu import GpuArray, to_host

    ringcore.init()
    tensor = GpuArray(np.ones(1000, np.float32))
    ringcore.allreduce_(tensor, op=ringcore.Sum)
    to_host(tensor)
    if ringcore.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = caught(ringcore.allreduce_, tensor, op=ringcore.Sum, name="alone")
    to_host(tensor)
    return error


def test_a_killed_rank_lets_the_others_go_on(tmp_path: Path) -> None:
    with ranks.started(survive, 2, tmp_path, env=double_environ(RINGCORE_HEARTBEAT_S="1")) as job:
        survivor, killed = job.wait()
    assert killed.exit_code == -9
    assert survivor.result["type"] == "PeerLostError", survivor.stderr
    assert "rank 1" in survivor.result["message"]


def refuse() -> list:
    from support.gpu import GpuArray

    ringcore.init()
    found = []
    host, gpu = np.ones(10, np.float32), GpuArray(np.ones(10, np.float32))
    mine = host if ringcore.rank() == 0 else gpu
    found.append(caught(ringcore.allreduce, mine, name="here and there"))
    ringcore.allreduce(gpu, name="both there")
    found.append(caught(ringcore.grouped_allreduce, [host, gpu], name="mixed"))
    return found


def test_tensors_in_the_wrong_place_are_refused(tmp_path: Path) -> None:
    for mismatch, mixed in ranks.run(refuse, 2, tmp_path, env=double_environ()):
        assert mismatch["type"] == "MismatchError"
        assert "on a GPU" in mismatch["message"]
        assert mixed["type"] == "InvalidArgument"
        assert "some tensors of a group lie on GPUs, and some in the host's memory" in mixed["message"]


def test_where_there_is_no_cuda_the_reason_is_told() -> None:
    program = """
import ringcore
class Fake:
    __cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (256, False), "version": 3}
ringcore.init()
try:
    ringcore.allreduce_(Fake())
except ringcore.RingcoreError as error:
    print(type(error).__name__, error)
"""
    environ = clean_environ() | {"RINGCORE_CUDA_LIBRARY": "/nowhere/libcuda.so"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.stdout.startswith("ResourceError CUDA's driver cannot be opened: /nowhere/libcuda.so"), ended.stderr
