"""`ringcore_dask.run` on a real LocalCluster."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringcore
import ringcore_dask
from distributed import Client, Event, LocalCluster
from ringcore.launcher.external import tickets
from ringcore_dask import LaunchError, RankError
from support.processes import WRITE_PID, Pids, eventually, is_alive

# Dask's own: the event loop of a cluster that is closed.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0) as cluster,
        Client(cluster) as client,
    ):
        yield client


def total(value: float) -> tuple[int, int, float]:
    import ringcore as ring

    ring.init()
    print("hello")
    return ring.rank(), ring.local_size(), float(ring.allreduce(np.full(9, value + ring.rank()), op=ring.Sum)[0])


def test_results_in_order_and_output_of_a_job_that_was_defined_here(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    offset = 3.0
    local = lambda: (*total(offset), os.environ["SOME_NAME"])  # noqa: E731
    assert ringcore_dask.run(client, local, env={"SOME_NAME": "x"}) == [(0, 2, 7.0, "x"), (1, 2, 7.0, "x")]
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0]<stdout> hello", "[1]<stdout> hello"]
    assert ringcore_dask.run(client, total, 1, args=[1.0]) == [(0, 1, 1.0)]


def test_each_worker_has_one_rank_and_the_chosen_ones_are_taken(client: Client) -> None:
    (chosen, _) = sorted(client.scheduler_info(n_workers=-1)["workers"], reverse=True)
    worker = client.run(os.getpid)[chosen]
    assert ringcore_dask.run(client, worker_of_this_rank, workers=[chosen]) == [worker]
    assert set(ringcore_dask.run(client, worker_of_this_rank)) == set(client.run(os.getpid).values())


def worker_of_this_rank() -> int:
    """A worker has a zygote, that an agent, and that the rank."""
    pid = os.getpid()
    for _ in range(3):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def fails_on_one() -> None:
    import ringcore as ring

    ring.init()
    if ring.rank() == 1:
        raise LookupError("no such row")
    ring.barrier()


def test_what_a_rank_raises_is_the_error_and_the_workers_live_on(client: Client) -> None:
    before = client.run(os.getpid)
    with pytest.raises(RankError, match="rank 1 raised LookupError: no such row") as caught:
        ringcore_dask.run(client, fails_on_one)
    assert isinstance(caught.value.original, LookupError)
    with pytest.raises(RankError, match="was killed by SIGABRT"):
        ringcore_dask.run(client, os.abort, 1)
    assert client.run(os.getpid) == before


def waits(folder: str) -> None:
    import ringcore as ring

    ring.init()
    os.chdir(folder)
    namespace: dict[str, Any] = {}
    exec(WRITE_PID, namespace)
    namespace["write_pid"](ring.rank())
    ring.barrier()
    time.sleep(1000)


def test_a_worker_that_is_killed_is_the_error_and_leaves_no_rank(client: Client, tmp_path: Path) -> None:
    (victim, *_) = client.run(os.getpid).values()

    def kill() -> None:
        Pids(tmp_path).wait(2)
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RankError, match=r"its agent has gone"):
        ringcore_dask.run(client, waits, args=[str(tmp_path)])
    killer.join()
    eventually(lambda: not any(map(is_alive, Pids(tmp_path).read().values())), "no rank is left", 30)
    client.wait_for_workers(2, timeout=60)


@pytest.mark.long
def test_jobs_one_after_the_other_leave_nothing(client: Client) -> None:
    def held() -> dict[str, int]:
        own = len(os.listdir("/proc/self/fd"))
        return {"client": own, **client.run(lambda: len(os.listdir("/proc/self/fd")))}

    def most_grown() -> int:
        return max(now - before[process] for process, now in held().items())

    ringcore_dask.run(client, total, args=[1.0])
    before = held()
    for _ in range(6):
        assert len(ringcore_dask.run(client, total, args=[1.0])) == 2
    # Dask opens and closes connections of its own; a descriptor that a job leaves would be there six times.
    eventually(lambda: most_grown() < 6, "no process holds a descriptor more for each job", 30)


def runs_again() -> str:
    with pytest.raises(RuntimeError) as caught:
        ringcore_dask.run(None, total)  # type: ignore[arg-type]
    return str(caught.value)


def test_what_cannot_be_is_said_at_once(client: Client) -> None:
    assert "is called inside a rank" in ringcore_dask.run(client, runs_again, 1)[0]
    with pytest.raises(ValueError, match="3 ranks need as many workers, and there are 2"):
        ringcore_dask.run(client, total, 3, args=[1.0])
    with pytest.raises(ValueError, match="0 ranks need as many workers"):
        ringcore_dask.run(client, total, 0, args=[1.0])
    with pytest.raises(ValueError, match="there is no worker tcp://elsewhere:1 in this cluster; it has tcp://127"):
        ringcore_dask.run(client, total, workers=["tcp://elsewhere:1"], args=[1.0])
    with pytest.raises(TypeError, match=r"n='2' is no whole number"):
        ringcore_dask.run(client, total, "2", args=[1.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"client= is a LocalCluster, and no Client of Dask"):
        ringcore_dask.run(client.cluster, total, args=[1.0])  # type: ignore[arg-type]
    with Client(client.cluster) as closed:
        pass
    with pytest.raises(RuntimeError, match=r"this client of Dask is closed"):
        ringcore_dask.run(closed, total, args=[1.0])
    with pytest.raises(TypeError, match="cannot be pickled because of variable 'lock'"):
        lock = threading.Lock()
        ringcore_dask.run(client, lambda: lock)
    end = Event("the worker's own work")
    busy = client.submit(end.wait, workers=[next(iter(client.scheduler_info()["workers"]))])
    with contextlib.ExitStack() as stack:
        stack.callback(busy.result)
        stack.callback(end.set)
        with pytest.raises(LaunchError, match=r"host task . did not answer within 2 s"):
            ringcore_dask.run(client, total, args=[1.0], start_timeout_s=2)
    assert len(ringcore_dask.run(client, total, args=[1.0])) == 2


def test_another_ringcore_is_named_with_both_hosts_and_versions(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tickets, "__version__", "9.9")
        host, version = re.escape(socket.gethostname()), ringcore.__version__
        said = rf"{host} has ringcore 9\.9, but {host} has ringcore {version}; install the same version"
        with pytest.raises(LaunchError, match=f"a worker could not start its rank: .*{said}"):
            ringcore_dask.run(client, total, args=[1.0])
    assert len(ringcore_dask.run(client, total, args=[1.0])) == 2
