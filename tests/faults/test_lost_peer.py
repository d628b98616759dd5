"""A rank dies, stops, leaves or raises: the others know who, in which tensor, and go on living."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.rank import await_mark, caught, mark, reduce_until_lost

# The report comes within milliseconds or the heartbeat's limit; the bound only tells a hang from an error.
HANG_S = 10.0
# How a lost rank is noticed is each transport's own; what its end is called is not.
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])
ONE_IN_EACH_RUN = pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])


def reduces_until_lost(elements: int) -> dict:
    ringcore.init()
    error = reduce_until_lost(elements, "big.tensor")
    error["again"] = caught(ringcore.allreduce, np.ones(3, np.float32), name="after")
    ringcore.shutdown()
    return error


@TRANSPORTS
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_killed_rank_is_named_with_the_tensor(tmp_path: Path, size: int, transport: str) -> None:
    # 256 MiB: a kill at any moment hits the middle of an operation.
    with ranks.started(reduces_until_lost, size, tmp_path, 64 << 20, env={"RINGCORE_TRANSPORT": transport}) as job:
        job.await_mark("ready", *range(size))
        job.signal(size - 1, signal.SIGKILL)
        outcomes = job.wait()
    assert outcomes[-1].exit_code == -signal.SIGKILL
    for outcome in outcomes[:-1]:
        assert outcome.exit_code == 0, outcome.stderr
        error = outcome.result
        assert error["type"] == "PeerLostError", error
        assert f"rank {size - 1}" in error["message"]
        assert "big.tensor" in error["message"]
        assert "Remedy" in error["message"]
        # The engine says the same to whatever comes next.
        assert error["again"]["type"] == "PeerLostError", error
        assert f"rank {size - 1}" in error["again"]["message"]
        assert error["again"]["seconds"] < HANG_S


@TRANSPORTS
def test_a_stopped_rank_is_lost_after_the_heartbeat_limit(tmp_path: Path, transport: str) -> None:
    env = {"RINGCORE_TRANSPORT": transport, "RINGCORE_HEARTBEAT_S": "1"}
    with ranks.started(reduces_until_lost, 3, tmp_path, 1 << 18, env=env) as job:
        job.await_mark("ready", 0, 1, 2)
        job.signal(1, signal.SIGSTOP)
        # Survivors end by themselves; the stopped one cannot.
        job.await_end(0, 2)
        job.signal(1, signal.SIGKILL)
        outcomes = job.wait()
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.result["type"] == "PeerLostError"
        assert "rank 1" in outcome.result["message"]
        assert "big.tensor" in outcome.result["message"]


def pauses() -> list:
    ringcore.init()
    tensor = np.ones(1000, np.float32)
    mark("ready")
    if ringcore.rank() == 0:
        await_mark("paused", "test")
    mark("waiting")
    return [float(ringcore.allreduce(tensor, op=ringcore.Sum, name="t")[0]) for _ in range(3)]


@ONE_IN_EACH_RUN
def test_a_short_pause_is_no_alarm(tmp_path: Path, transport: str) -> None:
    # The pause is what is tested here; everything else waits for marks.
    env = {"RINGCORE_TRANSPORT": transport, "RINGCORE_HEARTBEAT_S": "1"}
    with ranks.started(pauses, 2, tmp_path, env=env) as job:
        job.await_mark("ready", 0, 1)
        job.await_mark("waiting", 1)
        job.pause(1, 0.4)
        job.mark("paused")
        outcomes = job.wait()
    assert [outcome.result for outcome in outcomes] == [[2.0] * 3] * 2, outcomes


def sums_up_much() -> list:
    ringcore.init()
    tensor = np.ones(16 << 20, np.float32)
    found = set()
    for step in range(30):
        found.add(float(ringcore.allreduce(tensor, op=ringcore.Sum, name="t")[-1]))
        if step == 2:
            mark("ready")
    return list(found)


@pytest.mark.long
def test_who_may_be_silent_for_long_may_leave_data_unread_for_as_long(tmp_path: Path) -> None:
    # Longer than SocketAnswers would wait for a host that acknowledges nothing; this one's kernel does.
    env = {"RINGCORE_TRANSPORT": "tcp", "RINGCORE_HEARTBEAT_S": "90"}
    with ranks.started(sums_up_much, 2, tmp_path, env=env) as job:
        job.await_mark("ready", 0, 1)
        job.pause(1, 40)
        outcomes = job.wait()
    assert [outcome.result for outcome in outcomes] == [[2.0]] * 2, outcomes


def starves() -> list:
    """Rank 1 and what needs no rest share a processor, which goes to the others, until rank 0 has told of it."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has sent nothing for" in record.getMessage():
                told.append(record.getMessage())
                mark("told")

    # Each spins until rank 0 has told.
    hog = """if True:
        import os, sys
        folder, parent, core = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        os.sched_setaffinity(0, [core])
        try:  # the kernel then leaves the others a twentieth of each second at most
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        except PermissionError:  # ... and otherwise it lets the rank wait for eight of these
            pass
        while os.getppid() == parent and not os.path.exists(folder + "/mark.told.0"):
            pass
    """
    told: list[str] = []
    logging.getLogger("ringcore").addHandler(Handler())
    ringcore.init()
    tensor = np.ones(1000, np.float32)
    ringcore.allreduce(tensor, op=ringcore.Sum, name="before")
    if ringcore.rank() == 1:
        here = os.sched_getaffinity(0)
        core = min(here)
        command = [sys.executable, "-c", hog, os.environ["RANKS_DIRECTORY"], str(os.getpid()), str(core)]
        threads = [int(name) for name in os.listdir("/proc/self/task")]
        for thread in threads:
            os.sched_setaffinity(thread, [core])
        hogs = [subprocess.Popen(command) for _ in range(8)]
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        await_mark("told", 0)
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(thread, here)
        for hog in hogs:
            hog.wait()
    try:
        return [float(ringcore.allreduce(tensor, op=ringcore.Sum, name="after")[0]), *told]
    finally:
        mark("told")  # also where it failed: nothing spins for longer


def test_a_rank_that_gets_no_processor_is_waited_for(tmp_path: Path) -> None:
    found = ranks.run(starves, 2, tmp_path, env={"RINGCORE_TRANSPORT": "shm", "RINGCORE_HEARTBEAT_S": "0.5"})
    assert found[0][0] == 2.0
    assert found[1] == [2.0]
    assert "rank 0: rank 1 has sent nothing for" in found[0][1]
    assert "It wants to run, but gets no processor" in found[0][1]


def computes_under_the_lock() -> float:
    ringcore.init()
    tensor = np.ones(3, np.float32)
    if ringcore.rank() == 0:
        # One bytecode that runs for seconds: no other Python thread gets a turn.
        begin = time.monotonic()
        numbers = 1 << 20
        while time.monotonic() - begin < 1.5:
            begin_call = time.monotonic()
            sum(range(numbers))
            if time.monotonic() - begin_call < 1.2:
                numbers *= 2
    return float(ringcore.allreduce(tensor, op=ringcore.Sum, name="t")[0])


@ONE_IN_EACH_RUN
def test_a_rank_that_computes_under_pythons_lock_is_not_dead(tmp_path: Path, transport: str) -> None:
    env = {"RINGCORE_TRANSPORT": transport, "RINGCORE_HEARTBEAT_S": "0.5"}
    assert ranks.run(computes_under_the_lock, 2, tmp_path, env=env) == [2.0, 2.0]


def last_rank_ends(how: str) -> dict:
    ringcore.init()
    ringcore.barrier()
    if ringcore.rank() == ringcore.size() - 1:
        for other in range(ringcore.size() - 1):
            await_mark("through", other)  # the barrier is not what is to be cut short
        if how == "raise":
            raise ValueError("the data set is empty on purpose")
        if how == "shutdown":
            ringcore.shutdown()
            await_mark("told", 0)
            return {}
        if how == "os._exit":
            os._exit(3)
        sys.exit(0)
    mark("through")
    error = caught(ringcore.allreduce, np.ones(3, np.float32), name="waits.for.it")
    mark("told")
    return error


@pytest.mark.parametrize("how", ["raise", "shutdown", "os._exit", pytest.param("sys.exit", marks=pytest.mark.long)])
@ONE_IN_EACH_RUN
def test_a_rank_that_ends_early_is_named_to_the_others(tmp_path: Path, how: str, transport: str) -> None:
    with ranks.started(last_rank_ends, 3, tmp_path, how, env={"RINGCORE_TRANSPORT": transport}) as job:
        outcomes = job.wait()
    assert outcomes[2].exit_code == {"raise": 1, "shutdown": 0, "os._exit": 3, "sys.exit": 0}[how]
    for outcome in outcomes[:2]:
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.result["type"] == "PeerLostError", outcome.result
        assert "rank 2" in outcome.result["message"]
        assert "waits.for.it" in outcome.result["message"]
        assert outcome.result["seconds"] < HANG_S
        if how == "raise":
            assert "ValueError: the data set is empty on purpose" in outcome.result["message"]


def ends_without_shutdown(rounds: int) -> float:
    ringcore.init()
    handles = [ringcore.allreduce_async(np.ones(100, np.float32), op=ringcore.Sum, name=f"t{i}") for i in range(rounds)]
    return float(sum(ringcore.synchronize(handle)[0] for handle in handles))


@pytest.mark.long
def test_a_hundred_programs_that_end_without_shutdown_end_well(tmp_path: Path) -> None:
    for number in range(100):
        directory = tmp_path / str(number)
        directory.mkdir()
        env = {"RINGCORE_TRANSPORT": ("shm", "tcp")[number % 2]}
        assert ranks.run(ends_without_shutdown, 2, directory, 20, env=env) == [40.0, 40.0]


def a_rank_is_missing(blocking: bool) -> dict:
    ringcore.init()
    ringcore.barrier()
    if ringcore.rank() == 1:

        def busy_elsewhere() -> None:
            await_mark("told", 0)
            await_mark("told", 2)

        busy_elsewhere()
    tensor = np.ones(3, np.float32)
    if blocking:
        error = caught(ringcore.allreduce, tensor, name="late.tensor")
    else:
        error = caught(lambda: ringcore.synchronize(ringcore.allreduce_async(tensor, name="late.tensor")))
    mark("told")
    # The late one hears the same; then all go on.
    error["after"] = float(ringcore.allreduce(tensor, op=ringcore.Sum, name="after")[0])
    return error


@ONE_IN_EACH_RUN
@pytest.mark.parametrize(
    "blocking", [pytest.param(True, id="blocking"), pytest.param(False, marks=pytest.mark.long, id="async")]
)
def test_a_missing_rank_is_reported_with_its_stack_and_then_an_error(
    tmp_path: Path, blocking: bool, transport: str
) -> None:
    env = {"RINGCORE_TRANSPORT": transport, "RINGCORE_STALL_WARNING_S": "0.2", "RINGCORE_TIMEOUT_S": "1.5"}
    with ranks.started(a_rank_is_missing, 3, tmp_path, blocking, env=env) as job:
        outcomes = job.wait()
    for outcome in outcomes:
        assert outcome.result is not None, outcome.stderr
        assert outcome.result["type"] == "TimeoutError", outcome
        assert "late.tensor" in outcome.result["message"]
        assert "rank 1" in outcome.result["message"]
        assert outcome.result["after"] == 3.0
    assert len({outcome.result["message"] for outcome in outcomes}) == 1
    logged = outcomes[0].stderr + outcomes[2].stderr
    assert "late.tensor" in logged
    assert "rank 1" in logged
    assert "busy_elsewhere" in logged, logged
