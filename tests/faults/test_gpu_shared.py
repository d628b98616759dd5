"""What goes wrong on a GPU that ranks share: everybody gets the same typed error, and their streams go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ringcore
from support import ranks
from support.gpu import sharing_environ

pytestmark = pytest.mark.skipif("RINGCORE_TEST_GPUS" in os.environ, reason="only the double can hold a stream back")


def let_wait() -> dict:
    """Rank 1 has launched its part, but its GPU does not come to it."""
    from support.gpu import GpuArray, driver, stream, to_host

    ringcore.init()
    tensor = GpuArray(np.ones(1000, np.float32))
    ringcore.allreduce_(tensor, op=ringcore.Sum)
    to_host(tensor)
    if ringcore.rank() == 1:
        driver().gpu_double_hold(stream())
    ringcore.allreduce_(tensor, op=ringcore.Sum, name="held")
    error = caught(ringcore.barrier)
    while error["type"] is None:
        error = caught(ringcore.barrier)
    if ringcore.rank() == 1:
        driver().gpu_double_let_go(stream())
    to_host(tensor)  # the stream runs again
    ringcore.shutdown()
    ringcore.init()
    fresh = GpuArray(np.ones(1000, np.float32))
    ringcore.allreduce_(fresh, op=ringcore.Sum)
    return {"error": error, "usable": float(to_host(fresh)[0])}


def test_a_gpu_that_does_not_come_to_it_is_a_timeout_on_all_ranks(tmp_path: Path) -> None:
    for outcome in ranks.run(let_wait, 3, tmp_path, env=sharing_environ(RINGCORE_TIMEOUT_S="1")):
        assert outcome["error"]["type"] == "TimeoutError", outcome
        assert "'held' was launched on GPU 0" in outcome["error"]["message"]
        assert outcome["usable"] == 3.0


def survive() -> dict:
    from support.gpu import GpuArray, driver, stream, to_host

    ringcore.init()
    tensor = GpuArray(np.ones(1000, np.float32))
    ringcore.allreduce_(tensor, op=ringcore.Sum)
    to_host(tensor)
    killed = ringcore.size() - 1
    if ringcore.rank() == killed:
        driver().gpu_double_hold(stream())  # its part is launched, and never runs
    ringcore.allreduce_(tensor, op=ringcore.Sum, name="unfinished")
    mark("launched")
    if ringcore.rank() == killed:
        for other in range(killed):
            await_mark("launched", other)
        os.kill(os.getpid(), signal.SIGKILL)
    error = caught(ringcore.allreduce_, tensor, op=ringcore.Sum, name="afterwards")
    to_host(tensor)  # the stream of this rank runs on, although the other one's will not
    ringcore.shutdown()
    return error


@pytest.mark.parametrize(
    ("size", "gpus"), [(2, 1), *(pytest.param(*case, marks=pytest.mark.long) for case in ((3, 1), (4, 2)))]
)
def test_a_killed_rank_lets_the_others_go_on(tmp_path: Path, size: int, gpus: int) -> None:
    before = set(Path("/dev/shm").glob("*ringcore*"))
    with ranks.started(survive, size, tmp_path, env=sharing_environ(gpus, RINGCORE_HEARTBEAT_S="2")) as job:
        *survivors, killed = job.wait()
    assert killed.exit_code == -9
    for survivor in survivors:
        assert survivor.result["type"] == "PeerLostError", survivor.stderr
        assert f"rank {size - 1}" in survivor.result["message"]
        assert survivor.exit_code == 0
    assert set(Path("/dev/shm").glob("*ringcore*")) <= before
