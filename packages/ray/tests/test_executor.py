"""Actors as ranks: results, state, failures, and what is left."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ringcore_ray import RankError, RingExecutor
from support.processes import eventually


def total(value: float) -> tuple[int, int, float, int]:
    import ringcore as ring

    ring.init()
    shared = ring.allreduce(np.full(1000, value + ring.rank()), op=ring.Sum)
    return ring.rank(), ring.size(), float(shared[0]), ring.local_size()


@pytest.fixture(scope="module")
def executor() -> Iterator[RingExecutor]:
    with RingExecutor(num_workers=2) as started:
        yield started


def test_a_function_runs_on_every_rank_with_results_in_order(executor: RingExecutor) -> None:
    assert executor.run(total, args=[10.0]) == [(0, 2, 21.0, 2), (1, 2, 21.0, 2)]
    assert executor.run(total, kwargs={"value": 1.0}) == [(0, 2, 3.0, 2), (1, 2, 3.0, 2)]
    assert ray.get(executor.run_remote(total, args=[0.0])) == [(0, 2, 1.0, 2), (1, 2, 1.0, 2)]


class Counter:
    def __init__(self, start: int, *, step: int = 1) -> None:
        import ringcore as ring

        ring.init()
        self.value = start + ring.rank()
        self.step = step

    def count(self) -> int:
        self.value += self.step
        return self.value


def test_actors_keep_an_object_of_the_users() -> None:
    with RingExecutor(num_hosts=1, num_workers_per_host=2) as _:
        pass
    executor = RingExecutor(num_hosts=1, num_workers_per_host=2, env={"SOME_NAME": "some value"})
    executor.start(Counter, executable_args=[10], executable_kwargs={"step": 5}, extra_env_vars={"OTHER_NAME": "7"})
    try:
        assert executor.execute(lambda counter: counter.count()) == [15, 16]
        assert executor.execute(Counter.count) == [20, 21]
        assert executor.execute_single(Counter.count) == 25
        assert (
            executor.run(lambda: [os.environ[name] for name in ("SOME_NAME", "OTHER_NAME")])
            == [["some value", "7"]] * 2
        )
    finally:
        executor.shutdown()


def forgets_init() -> None:
    import ringcore as ring

    ring.allreduce(np.ones(3))


def test_what_cannot_be_called_is_said() -> None:
    lock = threading.Lock()
    with RingExecutor(num_workers=1) as executor:
        with pytest.raises(TypeError, match="lock"):
            executor.run(lambda: lock)
        with pytest.raises(TypeError, match="are to call is a list, and no function"):
            executor.run([0, 1])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"args=1.0 is no list of arguments: give args=\[1.0\]"):
            executor.run_remote(total, args=1.0)  # type: ignore[arg-type]
        with pytest.raises(RankError, match=r"TypeError: what the function returned cannot be sent back: .*lock"):
            executor.run(threading.Lock)
        executor.restart()
        with pytest.raises(RankError, match=r"rank 0 raised NotInitializedError: .*init\(\)"):
            executor.run(forgets_init)


class Picky:
    def __init__(self) -> None:
        import ringcore as ring

        ring.init()
        if ring.rank() == 1:
            raise LookupError("no such model")
        ring.barrier()


def test_what_an_object_of_the_users_raises_is_the_error() -> None:
    executor = RingExecutor(num_workers=2)
    with pytest.raises(RankError, match="rank 1 raised LookupError: no such model"):
        executor.start(Picky)
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        executor.execute(print)


def fails_on_one(rank: int) -> None:
    import ringcore as ring

    ring.init()
    if ring.rank() == rank:
        raise LookupError("no such thing")
    ring.allreduce(np.ones(10))


def test_what_a_rank_raises_is_the_error_and_the_others_do_not_wait(executor: RingExecutor) -> None:
    for rank in (0, 1):
        with pytest.raises(RankError, match=f"rank {rank} raised LookupError: no such thing") as caught:
            executor.run(fails_on_one, args=[rank])
        assert caught.value.rank == rank
        assert isinstance(caught.value.original, LookupError)
        assert "in fails_on_one" in caught.value.remote_traceback
        with pytest.raises(RuntimeError, match=r"as rank . raised LookupError.*: call restart\(\) first"):
            executor.run(total, args=[1.0])
        executor.restart()
        assert executor.run(total, args=[1.0])[0] == (0, 2, 3.0, 2)


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def survives(rank: int, path: str) -> None:
    """What the ranks that live on see of one that dies."""
    import ringcore as ring

    ring.init()
    ring.barrier()
    if ring.rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        ring.allreduce(np.ones(10))
    except ring.PeerLostError as error:
        Path(path, str(ring.rank())).write_text(str(error))
        raise


def test_an_actor_that_dies_is_the_error_and_restart_replaces_it(executor: RingExecutor, tmp_path: Path) -> None:
    for rank in (0, 1):
        before = executor.run(os.getpid)
        with pytest.raises(RankError, match=f"rank {rank} raised ActorDiedError: its actor has died"):
            executor.run(survives, args=[rank, str(tmp_path)])
        said = functools.partial(text_of, tmp_path / str(1 - rank))
        eventually(said, "the other rank has a typed error", 30)
        assert f"rank {rank}" in said()
        executor.restart()
        assert len({*before} & {*executor.run(os.getpid)}) == 1
        assert [place[:3] for place in executor.run(total, args=[1.0])] == [(0, 2, 3.0), (1, 2, 3.0)]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def cycle(_number: int) -> int:
    import ringcore as ring

    ring.init()
    ring.allreduce(np.ones(1 << 16))
    ring.shutdown()
    return open_files()


@pytest.mark.long
def test_twenty_jobs_one_after_the_other_leave_nothing(executor: RingExecutor) -> None:
    counts = []
    for number in range(20):
        executor.restart()
        counts.append(executor.run(cycle, args=[number]))
    assert counts[2:] == [counts[2]] * 18


def test_two_executors_at_once_do_not_find_each_other(executor: RingExecutor) -> None:
    with RingExecutor(num_workers=2) as other:
        both = [executor.run_remote(total, args=[1.0]), other.run_remote(total, args=[5.0])]
        assert [[value[2] for value in ray.get(one)] for one in both] == [[3.0, 3.0], [11.0, 11.0]]


def test_nothing_is_held_after_shutdown(executor: RingExecutor) -> None:
    free = ray.cluster_resources()["CPU"] - executor.num_workers
    eventually(lambda: ray.available_resources().get("CPU") == free, "the actors of other tests have ended")
    with RingExecutor(num_workers=1) as executor:
        (pid,) = executor.run(os.getpid)
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the actor has ended")
    eventually(lambda: ray.available_resources().get("CPU") == free, "Ray has its resources back")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "say how many: num_workers, or num_hosts"),
        ({"num_workers": 2, "num_hosts": 1}, "say how many"),
        ({"num_workers": 0}, "at least one worker, not 0"),
        ({"num_hosts": 1, "num_workers_per_host": -1}, "at least one worker, not -1"),
    ],
)
def test_wrong_numbers_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RingExecutor(**options)


def test_numbers_that_are_texts_are_refused() -> None:
    with pytest.raises(TypeError, match="num_workers='2' is no whole number"):
        RingExecutor("2")  # type: ignore[arg-type]


def test_calls_in_the_wrong_order_are_refused(executor: RingExecutor) -> None:
    fresh = RingExecutor(num_workers=1)
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        fresh.run(total, args=[1.0])
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        fresh.restart()
    with pytest.raises(RuntimeError, match="has started already"):
        executor.start()
    with pytest.raises(ValueError, match=r"callbacks= is not supported"):
        executor.run(total, args=[1.0], callbacks=[print])
