"""`RingExecutor(min_workers=..., max_workers=...)` on a real Ray: ranks come and go."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ringcore_ray import RankError, RingExecutor
from support.processes import WRITE_PID, Pids, eventually, is_alive


def train(folder: str, size: int) -> dict[str, Any]:
    """Adds up ones, a commit a step, until it is to stop and so many ranks are there."""
    import ringcore as ring
    from ringcore import elastic

    os.chdir(folder)
    namespace: dict[str, Any] = {}
    exec(WRITE_PID, namespace)
    ring.init()
    engines = set()

    @elastic.run
    def steps(state: Any) -> dict[str, Any]:
        engines.add(ring.job.state.context().began)
        namespace["write_pid"](os.getpid())
        while True:
            state.total += float(ring.allreduce(np.ones(3), op=ring.Sum)[0])
            state.commit()
            if ring.allreduce(np.array([Path("stop").exists()]), op=ring.Min)[0] and ring.size() == size:
                return {
                    "pid": os.getpid(), "place": (ring.rank(), ring.size()), "engines": len(engines),
                    "total": state.total,
                }  # fmt: skip

    return steps(elastic.ObjectState(total=0.0))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def rank_of(pid: int) -> int:
    return pid


def actor_of(pid: int) -> int:
    """The rank's agent and zygote are between."""
    return parent(parent(parent(pid)))


@pytest.mark.parametrize("victim", [rank_of, pytest.param(actor_of, marks=pytest.mark.long)])
def test_who_is_killed_is_replaced_while_the_other_goes_on(tmp_path: Path, victim: Callable[[int], int]) -> None:
    first: list[int] = []

    def kill() -> None:
        first.extend(Pids(tmp_path).wait(2).values())
        os.kill(victim(first[0]), signal.SIGKILL)
        eventually(lambda: len(Pids(tmp_path).read()) == 3, "another rank is there")
        (tmp_path / "stop").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    with RingExecutor(num_workers=2, min_workers=1) as executor:
        ranks = executor.run(train, args=[str(tmp_path), 2])
        killer.join()
        assert [rank["place"] for rank in ranks] == [(0, 2), (1, 2)]
        assert (ranks[0]["pid"], ranks[0]["engines"]) == (first[1], 1), "it has kept its process and its connections"
        assert ranks[0]["total"] == ranks[1]["total"]
        assert executor.run(os.getpid) != [rank["pid"] for rank in ranks], "each call is a job of its own"
    eventually(lambda: not any(map(is_alive, Pids(tmp_path).read().values())), "no rank is left", 30)


class Model:
    def __init__(self, value: int) -> None:
        self.value = value


def fails() -> None:
    raise LookupError("no such row")


@pytest.mark.long
def test_workers_that_ray_has_no_room_for_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    executor = RingExecutor(min_workers=2, max_workers=6)  # and there are four cores
    executor.start(Model, [7])
    assert set(executor.execute(lambda model: model.value)) == {7}
    assert [rank["place"] for rank in executor.run(train, args=[str(tmp_path), 4])] == [(n, 4) for n in range(4)]
    with pytest.raises(RankError, match="raised LookupError: no such row"):
        executor.run(fails)
    with pytest.raises(RuntimeError, match=r"come and go: run\(fn\) and execute\(fn\) call on all of them"):
        executor.run_remote(fails)
    executor.shutdown()
    eventually(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"], "all is given back", 30)


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"num_workers=2, which is not between min_workers=3 and max_workers=4"):
        RingExecutor(2, min_workers=3, max_workers=4)
    with pytest.raises(ValueError, match="num_hosts places a fixed number of workers"):
        RingExecutor(num_hosts=2, min_workers=1)
