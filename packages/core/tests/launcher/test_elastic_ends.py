"""How elastic jobs end, and begin, while one of those on the way hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from support.elastic import AT_ONCE, begun, told, train
from support.processes import Pids, Ringrun, eventually, is_alive

Script = Callable[..., str]


def test_a_job_that_is_done_ends_well_whatever_becomes_of_who_is_on_the_way(
    ringrun: Ringrun, script: Script, pids: Pids
) -> None:
    directory = ringrun.directory
    name = train(
        script,
        # Of the two that come, one fails when a rank has done its work, and the other hangs.
        first="""
if life:
    try:
        os.mkdir("one")
        role = "fails"
    except FileExistsError:
        role = "hangs"
    write_pid(role)
    while role == "hangs" or not os.path.exists("fail"): time.sleep(0.01)
    os._exit(3)
""",
        before="if rank > 1 and state.step == 5: os.kill(os.getpid(), signal.SIGKILL)",
    )
    with (directory / name).open("a") as file:
        file.write("while rank == 1 and not os.path.exists('end'): time.sleep(0.01)\n")
    words = ["-np", "4", "--min-np", "2", "--reset-limit", "9", "--blacklist-cooldown-range", "0.01", "0.01"]
    with ringrun.started(*words, name) as process:
        begun(directory, 4)
        eventually(lambda: {"fails", "hangs"} <= pids.read().keys(), "two are on the way")
        (directory / "stop").touch()
        eventually(lambda: not is_alive(pids.read()["0.0"]), "one rank has done its work")
        (directory / "fail").touch()
        eventually(lambda: not is_alive(pids.read()["fails"]), "one that was on the way has failed")
        (directory / "end").touch()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert [line["size"] for line in told(directory, "end")] == [2, 2]
    assert not any(map(is_alive, pids.read().values()))


def test_who_stops_while_the_others_connect_with_it_is_ended_and_they_meet_anew(
    ringrun: Ringrun, script: Script, pids: Pids
) -> None:
    name = train(
        script,
        # All have told where they are by then.
        first="""
from ringcore.bootstrap.connector import Connector
dial, calls = Connector.dial, []
def dial_or_stop(self, *args, **options):
    calls.append(self)
    if len(calls) == 1 and life == 0:
        if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)
        self.deadline = time.monotonic() + 2
    return dial(self, *args, **options)
Connector.dial = dial_or_stop
""",
        goes_on="state.step < 10 or ringcore.size() < 3",
    )
    done = ringrun("-np", "3", "--min-np", "2", "--blacklist-cooldown-range", "0.01", "0.01", name)
    assert done.returncode == 0, done.stderr
    assert "ringrun: rank 1 on localhost does not answer, and is killed" in done.stderr
    assert len({line["pid"] for line in told(ringrun.directory, "begin") if line["place"] == 0}) == 1, done.stderr
    assert {line["size"] for line in told(ringrun.directory, "end")} == {3}
    assert not any(map(is_alive, pids.read().values()))


def test_a_job_that_is_done_waits_for_who_has_left_but_not_for_ever(
    ringrun: Ringrun, script: Script, pids: Pids
) -> None:
    directory = ringrun.directory
    name = train(
        script,
        first="""
import atexit
def hang():
    while True: time.sleep(1)
if rank == 1: atexit.register(hang)
""",
    )
    with ringrun.started("-np", "2", "--min-np", "1", "--shutdown-timeout", "0.5", name) as process:
        begun(directory, 2)
        os.kill(pids.read()["1.0"], signal.SIGTERM)
        assert begun(directory, 3)[2]["size"] == 1, "it has left"
        (directory / "stop").touch()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert not any(map(is_alive, pids.read().values()))


def test_a_job_ends_with_the_first_change_beyond_the_limit(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    directory = ringrun.directory
    # Two ranks may go, one after the other, and nobody comes in their place meanwhile.
    words = ["-np", "4", "--min-np", "1", "--reset-limit", "2", "--blacklist-cooldown-range", "60", "60"]
    with ringrun.started(*words, train(script)) as process:
        begun(directory, 4)
        for lost, left in ((3, 3), (2, 2)):
            os.kill(pids.read()[f"{lost}.0"], signal.SIGKILL)
            eventually(
                lambda left=left: sum(line["size"] == left for line in told(directory, "begin")) == left,
                f"{left} ranks go on",
            )
        assert process.poll() is None, "as many changes as may be are none too many"
        os.kill(pids.read()["1.0"], signal.SIGKILL)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL, stderr
    assert (
        "ringrun: the job ends: its ranks have changed 3 times, and --reset-limit allows 2; the last change was the "
        "loss of rank 1 on localhost. Remedy: "
    ) in stderr
    assert "; the others go on, and it is started again" not in stderr.partition("rank 1 on localhost")[2]
    assert not any(map(is_alive, pids.read().values()))


def test_who_joins_beyond_the_limit_ends_the_job_too(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    name = train(script, before="if (rank, life) == (2, 0): os.kill(os.getpid(), signal.SIGKILL)")
    done = ringrun("-np", "3", "--min-np", "1", "--reset-limit", "1", *AT_ONCE, name)
    assert done.returncode == 1, done.stderr
    says = "have changed 2 times, and --reset-limit allows 1; the last change was the coming of rank 2 on localhost"
    assert says in done.stderr
    assert not any(map(is_alive, pids.read().values()))


def test_ranks_that_are_done_are_no_changes(ringrun: Ringrun, script: Script) -> None:
    name = train(script, goes_on="state.step < 5")
    with (ringrun.directory / name).open("a") as file:
        # The others go on without rank 0, which has done its work and takes its time to end.
        file.write(
            "if rank == 0:\n"
            "    ringcore.shutdown()\n"
            "    while not os.path.exists('summed'): time.sleep(0.01)\n"
            "else:\n"
            "    try:\n"
            "        ringcore.allreduce(np.ones(3))\n"
            "    except ringcore.MembershipChangedError:\n"
            "        pass\n"
            "    assert ringcore.size() < 3\n"
            "    open('summed', 'w').close()\n"
        )
    done = ringrun("-np", "3", "--min-np", "1", "--reset-limit", "0", name)
    assert done.returncode == 0, done.stderr
