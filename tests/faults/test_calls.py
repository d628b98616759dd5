"""Calls at the wrong time, from several threads, in another order, in a forked child; arrays that are refused."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.rank import await_mark, caught, mark

# What differs between transports is the engine's own, whose tests have all of them.
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])


def calls_around_init() -> dict:
    ones = np.ones(3, np.float32)
    found = {"before": [caught(ringcore.rank), caught(ringcore.allreduce, ones), caught(ringcore.barrier)]}
    ringcore.shutdown()  # nothing to do, and no error
    ringcore.init()
    first = ringcore.job.state.context()
    ringcore.init()
    found["twice"] = ringcore.job.state.context() is first
    found["sums"] = [float(ringcore.allreduce(ones, op=ringcore.Sum)[0])]
    ringcore.shutdown()
    ringcore.shutdown()
    found["after"] = [caught(ringcore.size), caught(ringcore.allreduce, ones), caught(ringcore.join)]
    for _ in range(3):
        ringcore.init()
        found["sums"].append(float(ringcore.allreduce(ones, op=ringcore.Sum)[0]))
        ringcore.shutdown()
    return found


@TRANSPORTS
def test_calls_before_init_and_after_shutdown_are_refused_and_init_works_again(tmp_path: Path, transport: str) -> None:
    for found in ranks.run(calls_around_init, 2, tmp_path, env={"RINGCORE_TRANSPORT": transport}):
        for error in [*found["before"], *found["after"]]:
            assert error["type"] == "NotInitializedError", error
            assert "init()" in error["message"]
        assert found["twice"] is True
        assert found["sums"] == [2.0] * 4


def waits_when_shut_down() -> dict:
    ringcore.init()
    if ringcore.rank() == 1:
        await_mark("told", 0)
        return {}
    handle = ringcore.allreduce_async(np.ones(3, np.float32), name="never")
    ringcore.shutdown()
    error = caught(ringcore.synchronize, handle)
    mark("told")
    return error


def test_an_operation_that_waits_at_shutdown_ends_with_an_error(tmp_path: Path) -> None:
    error = ranks.run(waits_when_shut_down, 2, tmp_path)[0]
    assert error["type"] == "ShutdownError", error


def four_threads() -> list:
    ringcore.init()
    me = ringcore.rank()
    sums: list = [[] for _ in range(4)]

    def work(thread: int) -> None:
        for step in range(100):
            tensor = np.full(64 + thread, 2.0**me * (thread + 1) * (step + 1), np.float32)
            result = ringcore.allreduce(tensor, op=ringcore.Sum, name=f"thread{thread}.{step}")
            expected = (2 ** ringcore.size() - 1) * (thread + 1) * (step + 1)
            sums[thread].append(bool((result == expected).all()))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sums


@TRANSPORTS
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_four_threads_get_right_results(tmp_path: Path, size: int, transport: str) -> None:
    results = ranks.run(four_threads, size, tmp_path, env={"RINGCORE_TRANSPORT": transport})
    assert results == [[[True] * 100] * 4] * size


def asynchronous_in_another_order(rounds: int) -> bool:
    ringcore.init()
    me, size = ringcore.rank(), ringcore.size()
    right = True
    for step in range(rounds):
        order = list(np.random.default_rng(100 * step + me).permutation(20))
        handles = {
            i: ringcore.allreduce_async(np.full(10 + 100 * i, (i + 1) * 2**me, np.int64), op=ringcore.Sum, name=f"t{i}")
            for i in order
        }
        for i in np.random.default_rng(step + 7 * me).permutation(20):
            result = ringcore.synchronize(handles[i])
            right = right and bool((result == (i + 1) * (2**size - 1)).all()) and result.shape == (10 + 100 * i,)
    return right


@TRANSPORTS
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_asynchronous_calls_in_another_order_on_each_rank_are_right(tmp_path: Path, size: int, transport: str) -> None:
    env = {"RINGCORE_TRANSPORT": transport}
    assert ranks.run(asynchronous_in_another_order, size, tmp_path, 30, env=env) == [True] * size


def polls_in_another_order() -> list:
    ringcore.init()
    tensors = {name: np.full(3, 2.0 ** ringcore.rank()) for name in ("a", "b")}
    handles = {}
    # Who looks whether one is done, or waits for a while, has not promised to submit nothing else before.
    for name in tensors if ringcore.rank() == 0 else reversed(tensors):
        handles[name] = ringcore.allreduce_async(tensors[name], op=ringcore.Sum, name=name)
        ringcore.poll(handles[name])
        handles[name].wait(0.2)
    return [float(ringcore.synchronize(handles[name])[0]) for name in tensors]


@TRANSPORTS
def test_polling_in_another_order_is_no_deadlock(tmp_path: Path, transport: str) -> None:
    assert ranks.run(polls_in_another_order, 2, tmp_path, env={"RINGCORE_TRANSPORT": transport}) == [[3.0, 3.0]] * 2


def blocking_in_opposite_order() -> dict:
    ringcore.init()
    names = ["first", "second"] if ringcore.rank() == 0 else ["second", "first"]
    ones = np.ones(3, np.float32)
    errors = [caught(ringcore.allreduce, ones, name=name) for name in names]
    return {"errors": errors, "after": float(ringcore.allreduce(ones, op=ringcore.Sum, name="after")[0])}


@TRANSPORTS
def test_blocking_calls_in_opposite_order_are_a_deadlock_error(tmp_path: Path, transport: str) -> None:
    results = ranks.run(blocking_in_opposite_order, 2, tmp_path, env={"RINGCORE_TRANSPORT": transport})
    for result in results:
        assert result["errors"][0]["type"] == "DeadlockError", result
        for word in ("first", "second", "rank 0", "rank 1"):
            assert word in result["errors"][0]["message"]
        assert result["after"] == 2.0
    assert results[0]["errors"][0]["message"] == results[1]["errors"][0]["message"]


def duplicate_name() -> dict:
    ringcore.init()
    tensor = np.ones(3, np.float32)
    if ringcore.rank() == 0:
        # The other rank has not submitted it, so it cannot be done.
        handle = ringcore.allreduce_async(tensor, op=ringcore.Sum, name="twice")
        error = caught(ringcore.allreduce_async, tensor, op=ringcore.Sum, name="twice")
        mark("told")
    else:
        await_mark("told", 0)
        handle = ringcore.allreduce_async(tensor, op=ringcore.Sum, name="twice")
        error = {}
    first = float(ringcore.synchronize(handle)[0])
    return {
        "error": error,
        "first": first,
        "after": float(ringcore.allreduce(tensor, op=ringcore.Sum, name="twice")[0]),
    }


@TRANSPORTS
def test_a_name_in_use_is_refused_and_its_first_use_unharmed(tmp_path: Path, transport: str) -> None:
    results = ranks.run(duplicate_name, 2, tmp_path, env={"RINGCORE_TRANSPORT": transport})
    assert results[0]["error"]["type"] == "DuplicateNameError", results
    assert "twice" in results[0]["error"]["message"]
    assert [(result["first"], result["after"]) for result in results] == [(2.0, 2.0)] * 2


def forks() -> dict:
    ringcore.init()
    ones = np.ones(3, np.float32)
    ringcore.allreduce(ones)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        errors = [caught(ringcore.allreduce, ones), caught(ringcore.rank)]
        ringcore.shutdown()
        os.write(write, json.dumps(errors).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        errors = json.loads(pipe.read())
    status = os.waitpid(child, 0)[1]
    return {"errors": errors, "status": status, "sum": float(ringcore.allreduce(ones, op=ringcore.Sum)[0])}


def test_a_forked_child_is_refused_and_its_parent_goes_on(tmp_path: Path) -> None:
    for result in ranks.run(forks, 2, tmp_path):
        assert [error["type"] for error in result["errors"]] == ["NotInitializedError"] * 2
        assert "fork" in result["errors"][0]["message"]
        assert result["status"] == 0
        assert result["sum"] == 2.0


def is_killed_with_a_child() -> dict:
    ringcore.init()
    ones = np.ones(3, np.float32)
    ringcore.allreduce(ones)
    if ringcore.rank() == 1:
        if os.fork() == 0:
            mark("forked")
            await_mark("noticed", 0)  # outlives its parent
            os._exit(0)
        await_mark("forked", 1)
        mark("ready")
        signal.pause()
    error = caught(ringcore.allreduce, ones, name="lonely")
    mark("noticed")
    return error


@TRANSPORTS
def test_a_child_of_a_killed_rank_does_not_hide_its_death(tmp_path: Path, transport: str) -> None:
    # The heartbeat would find it too, in a minute.
    env = {"RINGCORE_TRANSPORT": transport, "RINGCORE_HEARTBEAT_S": "60"}
    with ranks.started(is_killed_with_a_child, 2, tmp_path, env=env) as job:
        job.await_mark("ready", 1)
        job.signal(1, signal.SIGKILL)
        outcomes = job.wait()
    assert outcomes[0].result["type"] == "PeerLostError", outcomes
    assert outcomes[0].result["seconds"] < 30
    assert "the connection" in outcomes[0].result["message"]  # closed or reset


def arrays_that_are_refused() -> dict:
    ringcore.init()
    square = np.arange(16, dtype=np.float32).reshape(4, 4)
    frozen = np.ones(3, np.float32)
    frozen.flags.writeable = False
    found = {
        "strided": caught(ringcore.allreduce, square[:, ::2]),
        "transposed in place": caught(ringcore.allreduce_, square.T[:, :2]),
        "read-only in place": caught(ringcore.allreduce_, frozen),
        "read-only broadcast": caught(ringcore.broadcast_, frozen, 0),
        "integer average": caught(ringcore.allreduce, np.ones(3, np.int32)),
        "bool average": caught(ringcore.allreduce, np.ones(3, bool)),
        "complex": caught(ringcore.allreduce, np.ones(3, np.complex64)),
        "list": caught(ringcore.allreduce, [1.0, 2.0]),
        "long name": caught(ringcore.allreduce, np.ones(3, np.float32), name="x" * 4097),
        "uneven": caught(ringcore.alltoall, np.ones(3, np.float32)),
        "no rows": caught(ringcore.reducescatter, np.array(1.0)),
    }
    # A refusal is this rank's alone and sends nothing: the next unnamed call still meets its counterpart.
    return {"errors": found, "frozen": float(ringcore.allreduce(frozen, op=ringcore.Sum, name="frozen")[0])}


REFUSALS = {
    "strided": "not contiguous", "transposed in place": "not contiguous", "read-only in place": "read-only",
    "read-only broadcast": "read-only", "integer average": "average", "bool average": "average",
    "complex": "dtype", "list": "list", "long name": "4096", "uneven": "divided",
    "no rows": "scalar",
}  # fmt: skip


def test_arrays_that_cannot_be_worked_on_are_refused_with_the_remedy(tmp_path: Path) -> None:
    for result in ranks.run(arrays_that_are_refused, 2, tmp_path):
        for case, word in REFUSALS.items():
            error = result["errors"][case]
            assert error["type"] == "InvalidArgument", (case, error)
            assert word in error["message"], (case, error)
        assert result["frozen"] == 2.0


def not_a_number() -> dict:
    ringcore.init()
    me, size = ringcore.rank(), ringcore.size()
    found = {}
    for dtype in ("float16", "float32", "float64"):
        for op in (ringcore.Min, ringcore.Max):
            for count in (3, 1000, 100003):
                tensor = np.full(count, me, dtype)
                tensor[count // 2] = np.nan if me == size - 1 else me  # behind numbers on the other ranks
                tensor[0] = np.nan if me == 0 else me
                result = ringcore.allreduce(tensor, op=op)
                found[f"{dtype} {op.name} {count}"] = [
                    bool(np.isnan(result[0])), bool(np.isnan(result[count // 2])), int(np.isnan(result).sum()),
                    result.tobytes().hex()[:400],
                ]  # fmt: skip
    return found


@TRANSPORTS
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_not_a_number_wins_minimum_and_maximum_on_every_rank(tmp_path: Path, size: int, transport: str) -> None:
    results = ranks.run(not_a_number, size, tmp_path, env={"RINGCORE_TRANSPORT": transport})
    for case, found in results[0].items():
        assert found[:3] == [True, True, 2], (case, found)
    assert all(result == results[0] for result in results)


def beyond_32_bits(count: int) -> list:
    ringcore.init()
    tensor = np.full(count, ringcore.rank() + 1, np.uint8)
    tensor[-1] = 10 * (ringcore.rank() + 1)
    ringcore.allreduce_(tensor, op=ringcore.Sum, name="large")
    halves = [bool((part == 3).all()) for part in np.array_split(tensor[:-1], 8)]
    return [*halves, int(tensor[-1])]


@pytest.mark.long
def test_more_elements_than_32_bits_can_count(tmp_path: Path) -> None:
    results = ranks.run(beyond_32_bits, 2, tmp_path, 2**31 + 16)
    assert results == [[True] * 8 + [30]] * 2


def nothing_to_move() -> list:
    ringcore.init()
    size = ringcore.size()
    empty = np.empty((0, 4), np.float32)
    return [
        list(ringcore.allreduce(empty).shape),
        list(ringcore.allgather(empty).shape),
        list(ringcore.broadcast(empty, 0).shape),
        list(ringcore.reducescatter(empty).shape),
        list(ringcore.alltoall(empty).shape),
        list(ringcore.allgather(np.ones((ringcore.rank() % 2, 4), np.float32)).shape),
        list(ringcore.alltoall(empty, [0] * size)[0].shape),
    ]


def test_tensors_without_elements(tmp_path: Path) -> None:
    nothing = [[0, 4]] * 5 + [[1, 4], [0, 4]]
    assert ranks.run(nothing_to_move, 3, tmp_path) == [nothing] * 3


def outputs_that_do_not_fit() -> dict:
    ringcore.init()
    me = ringcore.rank()
    ones = np.ones((4, 2), np.float32)
    refused = {
        "dtype": caught(ringcore.allgather, ones, name="gradients", out=np.empty((8, 2), np.float64)),
        "shape": caught(ringcore.allgather, ones, name="gradients", out=np.empty((8, 3), np.float32)),
        "gaps": caught(ringcore.allgather, ones, name="gradients", out=np.empty((8, 4), np.float32)[:, ::2]),
        "read only": caught(ringcore.allgather, ones, name="gradients", out=np.frombuffer(bytes(64), np.float32)),
        "share": caught(ringcore.reducescatter, ones, op=ringcore.Sum, name="gradients", out=np.empty_like(ones)),
        "itself": caught(ringcore.alltoall, ones, name="gradients", out=ones),
        "of a group": caught(ringcore.grouped_allgather, [ones, ones], name="gradients", out=[np.empty_like(ones)]),
        "of an allreduce": caught(ringcore.allreduce, ones, name="gradients", out=np.empty((4, 3), np.float32)),
    }
    # What only all ranks together can tell: one of them is wrong.
    agreed = []
    for rows in (4, 50_000):
        mine = np.ones((rows + me, 2), np.float32)
        out = np.full((2 * rows + 1 + (me == 1), 2), -1, np.float32)
        agreed.append(caught(ringcore.allgather, mine, name="rows", out=out))
        agreed[-1]["untouched"] = bool((out == -1).all())
    fits = ringcore.allgather(ones, out=np.empty((8, 2), np.float32))
    return {"refused": refused, "agreed": agreed, "after": float(fits.sum())}


def test_an_output_that_does_not_fit_is_refused_by_name_and_not_written(tmp_path: Path) -> None:
    results = ranks.run(outputs_that_do_not_fit, 2, tmp_path)
    for result in results:
        for what, error in result["refused"].items():
            assert error["type"] == "InvalidArgument", (what, error)
            assert "gradients" in error["message"], (what, error)
        assert "float64 [8, 2]" in result["refused"]["dtype"]["message"]
        assert "not contiguous" in result["refused"]["gaps"]["message"]
        for error in result["agreed"]:
            assert error["type"] == "MismatchError", error
            assert "rank 1 gave an output of" in error["message"]
            assert error["untouched"]
        assert result["after"] == 16.0
    for error, other in zip(results[0]["agreed"], results[1]["agreed"], strict=True):
        assert error["message"] == other["message"]
