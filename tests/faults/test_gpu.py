"""What goes wrong on GPUs, through the test double of CUDA and NCCL: every rank gets the same typed error, in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import ranks
from support.elastic_adapters import check_recovery
from support.gpu import double_environ, sharing_environ
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


@pytest.mark.skipif("RINGCORE_TEST_GPUS" in os.environ, reason="only the double can be told to fail")
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


_HEAD = """
import numpy as np
import ringcore
import ringcore as ring
from ringcore import elastic
from support.gpu import GpuArray, to_host
"""
_SETUP = """
state = elastic.ObjectState(step=0, weights=[float(os.getpid())])

def weights(state):
    return state.weights

def step(state):
    gradient = ring.allreduce(GpuArray(np.full(1000, 1.0 + state.step)), op=ring.Sum)
    state.weights = [state.weights[0] + float(to_host(gradient)[-1])]
"""


@pytest.mark.parametrize("gpus", [8, pytest.param(1, marks=pytest.mark.long)], ids=["NCCL", "one GPU"])
def test_an_elastic_job_on_gpus_goes_on_without_a_killed_rank_and_takes_another_in(tmp_path: Path, gpus: int) -> None:
    environ = double_environ() if gpus > 1 else sharing_environ()
    check_recovery(tmp_path, _HEAD, _SETUP, PYTHONPATH=str(ranks.TESTS), **environ)


def commit_what_is_not_there() -> dict:
    """The last rank is killed when all have launched its part, which its GPU never comes to."""
    from ringcore import elastic
    from support.gpu import GpuArray, driver, stream, to_host

    ringcore.init()
    tensor = GpuArray(np.ones(1000, np.float32))
    ringcore.allreduce_(tensor, op=ringcore.Sum)
    state = elastic.ObjectState(sum=float(to_host(tensor)[0]))
    killed = ringcore.size() - 1
    if ringcore.rank() == killed:
        driver().gpu_double_hold(stream())
    ringcore.allreduce_(tensor, op=ringcore.Sum, name="unfinished")
    mark("launched")
    if ringcore.rank() == killed:
        for other in range(killed):
            await_mark("launched", other)
        os.kill(os.getpid(), signal.SIGKILL)
    state.sum = float(to_host(tensor)[0])  # it is there when the other is lost, and is no sum
    committed = error = caught(state.commit)
    if committed["type"] is None:  # as what a commit asks all others behind it
        error = caught(ringcore.allreduce_, tensor, op=ringcore.Sum, name="news")
    state.restore()
    fresh = GpuArray(np.ones(1000, np.float32))
    ringcore.allreduce_(fresh, op=ringcore.Sum)
    return {"committed": committed, "error": error, "kept": state.sum, "after": float(to_host(fresh)[0])}


@pytest.mark.skipif("RINGCORE_TEST_GPUS" in os.environ, reason="only the double can hold a stream back")
@pytest.mark.parametrize("gpus", [8, pytest.param(1, marks=pytest.mark.long)], ids=["NCCL", "one GPU"])
def test_what_gpus_had_not_ended_when_a_rank_was_lost_is_not_committed(tmp_path: Path, gpus: int) -> None:
    environ = double_environ() if gpus > 1 else sharing_environ()
    environ |= {"RINGCORE_ELASTIC": "1", "RINGCORE_HEARTBEAT_S": "2"}
    with ranks.started(commit_what_is_not_there, 3, tmp_path, env=environ) as job:
        *survivors, killed = job.wait()
    assert killed.exit_code == -9
    for survivor in survivors:
        assert survivor.exit_code == 0, survivor.stderr
        error = survivor.result["error"]
        assert error["type"] == "MembershipChangedError", error
        assert "go back to the last state" in error["message"]
        assert survivor.result["after"] == 2.0
        # On one GPU the other's part may end as rank 0, which sums for both, gives up; all take the state of rank 0.
        if gpus > 1 or survivor.rank == 0:
            message = survivor.result["committed"]["message"]
            assert message.startswith("GPUs had not ended what this rank has launched: rank 2 "), survivor.result
            assert survivor.result["kept"] == 3.0


def hear_of_it_from_nccl() -> dict:
    """NCCL notices at once that the last rank does not answer, and the engine when that was silent for long enough."""
    from support.gpu import GpuArray, driver, to_host

    ringcore.init()
    tensor = GpuArray(np.ones(1000, np.float32))
    ringcore.allreduce_(tensor, op=ringcore.Sum)
    to_host(tensor)
    mark("reduced")
    await_mark("silent", "test")
    if ringcore.rank() == 0:
        driver().gpu_double_disconnect()
    error = caught(ringcore.allreduce_, tensor, op=ringcore.Sum, name="after it")
    fresh = GpuArray(np.ones(1000, np.float32))
    again = caught(ringcore.allreduce_, fresh, op=ringcore.Sum)
    return {"error": error, "again": again, "sum": float(to_host(fresh)[0])}


needs_nccl_to_fail = pytest.mark.skipif(
    "RINGCORE_TEST_GPUS" in os.environ, reason="only the double can be told to lose its connections"
)


@needs_nccl_to_fail
def test_what_nccl_notices_first_is_a_lost_rank_all_the_same(tmp_path: Path) -> None:
    environ = double_environ(RINGCORE_ELASTIC="1", RINGCORE_HEARTBEAT_S="1")
    with ranks.started(hear_of_it_from_nccl, 3, tmp_path, env=environ) as job:
        job.await_mark("reduced", 0, 1, 2)
        job.signal(2, signal.SIGSTOP)
        job.mark("silent")
        *survivors, _ = job.wait()
    for survivor in survivors:
        assert survivor.result["error"]["type"] == "MembershipChangedError", survivor
        assert "rank 2 " in survivor.result["error"]["message"]
        assert survivor.result["again"]["type"] is None
        assert survivor.result["sum"] == 2.0


@needs_nccl_to_fail
def test_a_rank_that_only_nccl_cannot_reach_the_others_from_ends_with_what_nccl_says(tmp_path: Path) -> None:
    environ = double_environ(RINGCORE_ELASTIC="1", RINGCORE_HEARTBEAT_S="1")
    with ranks.started(hear_of_it_from_nccl, 3, tmp_path, env=environ) as job:
        job.await_mark("reduced", 0, 1, 2)
        job.mark("silent")
        outcomes = job.wait()
    found = [outcome.result[when] for outcome in outcomes for when in ("error", "again")]
    assert any(error["type"] == "PeerLostError" and "NCCL error" in error["message"] for error in found), found


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
