"""What follows an error: memory that nobody waits for is not touched, the next call is right, and every wait ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.rank import await_mark, caught, mark

# What differs between transports is the engine's own, whose tests have all of them.
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])


def drops_a_handle() -> list:
    ringcore.init()
    count = 100_000
    if ringcore.rank() == 0:
        ringcore.allreduce_async(np.full(count, 7, np.float32), name="dropped", op=ringcore.Sum)
        # Memory that was freed would be these arrays now.
        victims = [np.zeros(count, np.float32) for _ in range(8)]
        mark("dropped")
        ringcore.barrier()
        return [float(victim.max()) for victim in victims]
    await_mark("dropped", 0)
    sums = ringcore.allreduce(np.full(count, 5, np.float32), name="dropped", op=ringcore.Sum)
    ringcore.barrier()
    return [float(sums.min()), float(sums.max())]


@TRANSPORTS
def test_memory_of_a_dropped_handle_lives_until_the_engine_is_done(tmp_path: Path, transport: str) -> None:
    results = ranks.run(drops_a_handle, 2, tmp_path, env={"RINGCORE_TRANSPORT": transport})
    assert results == [[0.0] * 8, [12.0, 12.0]]


def broadcasts_from_nobody() -> list:
    ringcore.init()
    errors = [caught(ringcore.broadcast_, np.ones(64), 7, name="b") for _ in range(3)]
    return [error["type"] for error in errors] + [float(ringcore.allreduce(np.ones(1), op=ringcore.Sum)[0])]


def test_a_root_that_is_no_member_is_refused_each_time(tmp_path: Path) -> None:
    assert ranks.run(broadcasts_from_nobody, 2, tmp_path) == [["InvalidArgument"] * 3 + [2.0]] * 2


def group_with_one_mismatch() -> dict:
    ringcore.init()
    me = ringcore.rank()
    found = {}
    for wrong in range(3):
        tensors = [np.full(4 + (me if index == wrong else 0), 1.0, np.float32) for index in range(3)]
        found[f"wrong {wrong}"] = caught(ringcore.grouped_allreduce_, tensors, name="g", op=ringcore.Sum)["type"]
        # The same names again, right this time.
        tensors = [np.full(4, me + 1.0, np.float32) for _ in range(3)]
        ringcore.grouped_allreduce_(tensors, name="g", op=ringcore.Sum)
        found[f"right {wrong}"] = [float(tensor.sum()) for tensor in tensors]
    return found


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_group_fails_as_a_whole_and_its_names_are_free_again(tmp_path: Path, size: int) -> None:
    total = 4.0 * sum(range(1, size + 1))
    for result in ranks.run(group_with_one_mismatch, size, tmp_path, env={"RINGCORE_TIMEOUT_S": "30"}):
        assert result == {
            key: value
            for wrong in range(3)
            for key, value in ((f"wrong {wrong}", "MismatchError"), (f"right {wrong}", [total] * 3))
        }


def group_that_one_rank_does_not_complete() -> list:
    ringcore.init()
    ones = [np.ones(4, np.float32) for _ in range(2)]
    if ringcore.rank() == 1:
        # Only the first of the group: names and sizes as rank 0 has them.
        handle = ringcore.grouped_allreduce_async_(ones[:1], name="g")
        error = caught(ringcore.synchronize, handle)
    else:
        error = caught(ringcore.grouped_allreduce_, ones, name="g")
    mark("told")
    return [error["type"], float(ringcore.allreduce(np.ones(1), op=ringcore.Sum, name="after")[0])]


def test_a_group_that_is_not_the_same_everywhere_ends_in_an_error(tmp_path: Path) -> None:
    results = ranks.run(group_that_one_rank_does_not_complete, 2, tmp_path, env={"RINGCORE_TIMEOUT_S": "1"})
    assert [result[1] for result in results] == [2.0, 2.0]
    assert {result[0] for result in results} <= {"MismatchError", "TimeoutError"}


def tries_twice() -> list:
    ringcore.init()
    if ringcore.rank() == 1:
        await_mark("tried", 0)
        return []
    types = [caught(ringcore.allreduce_, np.ones(4), name="x")["type"] for _ in range(2)]
    mark("tried")
    return types


def test_the_second_try_of_an_operation_has_a_deadline_too(tmp_path: Path) -> None:
    env = {"RINGCORE_TIMEOUT_S": "0.5"}
    assert ranks.run(tries_twice, 2, tmp_path, env=env)[0] == ["TimeoutError", "TimeoutError"]


def leaves_with_something_announced() -> list:
    ringcore.init()
    ringcore.barrier()
    if ringcore.rank() == 1:
        await_mark("submitted", 0)
        ringcore.allreduce_async_(np.ones(4, np.float32), name="x")
        ringcore.shutdown()
        return []
    handles = [ringcore.allreduce_async_(np.ones(4, np.float32), name=name) for name in "abx"]
    mark("submitted")
    return [caught(ringcore.synchronize, handle)["type"] for handle in handles]


@TRANSPORTS
def test_what_a_leaving_rank_has_announced_ends_as_well(tmp_path: Path, transport: str) -> None:
    env = {"RINGCORE_TRANSPORT": transport, "RINGCORE_TIMEOUT_S": "300"}
    types = ranks.run(leaves_with_something_announced, 2, tmp_path, env=env)[0]
    assert types[:2] == ["PeerLostError"] * 2
    assert types[2] in (None, "PeerLostError")  # it had all data, or it had not


def leaves_in_the_middle() -> list:
    ringcore.init()
    tensor = np.ones(60_000_000, np.float32)
    ringcore.barrier()
    handle = ringcore.allreduce_async_(tensor, op=ringcore.Sum, name="large")
    if ringcore.rank() == 1:
        await_mark("submitted", 0)
        ringcore.shutdown()
        return []
    mark("submitted")
    return [caught(ringcore.synchronize, handle)["type"], float(tensor.min())]


@TRANSPORTS
def test_a_rank_that_leaves_in_the_middle_of_an_operation_is_noticed(tmp_path: Path, transport: str) -> None:
    env = {"RINGCORE_TRANSPORT": transport, "RINGCORE_TIMEOUT_S": "300"}
    error, smallest = ranks.run(leaves_in_the_middle, 2, tmp_path, env=env)[0]
    # A rank that says goodbye goes on for as long as its peers take to answer: it may just have got to the end.
    assert error == "PeerLostError" or (error, smallest) == (None, 2.0)


def forks_with_registered_memory() -> list:
    from ringcore import adapter

    ringcore.init()
    memory = adapter.allocate(1 << 20)
    array = np.frombuffer(memory.view(), np.float32)
    array[:] = 3
    child = os.fork()
    if child == 0:
        del array, memory
        os._exit(0)
    os.waitpid(child, 0)
    ringcore.barrier()
    return [float(array.min()), float(array.max())]


def test_a_forked_child_does_not_give_back_its_parents_memory(tmp_path: Path) -> None:
    assert ranks.run(forks_with_registered_memory, 2, tmp_path) == [[3.0, 3.0]] * 2


def gathers_more_than_there_is() -> dict:
    import resource

    ringcore.init()
    tensor = np.zeros(1 << 28, np.uint8)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    ringcore.barrier()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), resource.RLIM_INFINITY))
    return caught(ringcore.allgather, tensor, name="too.much")


def test_too_little_memory_is_an_error_on_every_rank(tmp_path: Path) -> None:
    for result in ranks.run(gathers_more_than_there_is, 2, tmp_path):
        assert result["type"] == "ResourceError", result
        assert "too.much" in result["message"]


def is_killed_while_it_computes() -> str | None:
    ringcore.init()
    if ringcore.rank() == 1:
        mark("ready")
        signal.pause()
    return caught(ringcore.allreduce_, np.ones(4), name="x")["type"]


def test_blocking_calls_notice_a_death_without_the_heartbeat(tmp_path: Path) -> None:
    with ranks.started(is_killed_while_it_computes, 2, tmp_path, env={"RINGCORE_HEARTBEAT_S": "60"}) as job:
        job.await_mark("ready", 1)
        job.signal(1, signal.SIGKILL)
        assert job.wait()[0].result == "PeerLostError"


def resizes_what_is_on_the_way() -> list:
    ringcore.init()
    data = bytearray(1000)
    if ringcore.rank() == 1:
        await_mark("resized", 0)
        ringcore.allreduce_(data, op=ringcore.Max, name="x")
        return []
    handle = ringcore.allreduce_async_(data, op=ringcore.Max, name="x")
    refused = caught(data.extend, bytes(100_000))["type"]
    mark("resized")
    ringcore.synchronize(handle)
    del handle
    data.extend(bytes(10))
    return [refused, len(data)]


def test_memory_cannot_be_resized_under_the_engine(tmp_path: Path) -> None:
    assert ranks.run(resizes_what_is_on_the_way, 2, tmp_path)[0] == ["BufferError", 1010]


def asks_a_handle_of_its_parent() -> list:
    ringcore.init()
    if ringcore.rank() == 1:
        await_mark("asked", 0)
        ringcore.allreduce(np.ones(4), op=ringcore.Sum, name="x")
        return []
    handle = ringcore.allreduce_async(np.ones(4), op=ringcore.Sum, name="x")
    child = os.fork()
    if child == 0:
        os._exit(0 if caught(handle.wait)["type"] == "ShutdownError" else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    mark("asked")
    return [code, float(ringcore.synchronize(handle)[0])]


def test_a_forked_child_cannot_drive_the_engine_of_its_parent(tmp_path: Path) -> None:
    assert ranks.run(asks_a_handle_of_its_parent, 2, tmp_path)[0] == [0, 2.0]


def asks_for_nonsense() -> list:
    from ringcore import adapter

    ringcore.init()
    ones = adapter.as_buffer(np.ones(4))
    gathered = adapter.allgather((ones,), "g")
    gathered.wait()
    reduced = ringcore.allreduce_async(np.ones(4), name="r")
    ringcore.synchronize(reduced)
    return [
        caught(gathered.adasum_into, 0, adapter.as_buffer(np.ones(3)), 1.0)["type"],
        caught(reduced.adasum_into, 0, ones, 1.0)["type"],
        caught(ringcore.reducescatter, np.ones(4), op=ringcore.Adasum)["type"],
        caught(ringcore.alltoall, np.ones(4), [5, -1])["type"],
        float(ringcore.allreduce(np.ones(1), op=ringcore.Sum, name="after")[0]),
    ]


def test_nonsense_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    assert ranks.run(asks_for_nonsense, 2, tmp_path) == [["InvalidArgument"] * 4 + [2.0]] * 2
