"""Elastic jobs: who is left goes on in its process, from the last commit, and others come and go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ringcore import _native
from support.elastic import AT_ONCE, HostScript, begun, engines, told, train
from support.processes import Pids, Ringrun, eventually, is_alive
from support.switches import local_switch, write_key

Script = Callable[..., str]


def test_who_is_left_goes_on_in_its_process_and_another_joins(ringrun: Ringrun, script: Script) -> None:
    name = train(
        script,
        before="if (rank, life, state.step) == (1, 0, 5): os.kill(os.getpid(), signal.SIGKILL)",
        goes_on="state.step < 10 or ringcore.size() < 3",
    )
    done = ringrun("-np", "3", "--min-np", "2", name)
    assert done.returncode == 0, done.stderr
    calls = told(ringrun.directory, "begin")
    first, second = calls[:3], calls[3:5]
    assert {line["size"] for line in first} == {3} and {line["step"] for line in first} == {0}
    # The two that are left have the ranks 0 and 1 now, and lose no more than the step that was under way.
    assert {(line["place"], line["rank"], line["size"], line["step"]) for line in second} == {
        (0, 0, 2, 5),
        (2, 1, 2, 5),
    }
    ended = {line["pid"]: line for line in told(ringrun.directory, "end")}
    (newcomer,) = ended.keys() - {line["pid"] for line in first}
    # In their processes, and over the connections that they have.
    engines = {(line["pid"], line["engine"]) for line in first}
    assert {(line["pid"], line["engine"]) for line in second} < engines
    ranks = {survivor["pid"]: survivor["rank"] for survivor in second}
    assert {pid: line["rank"] for pid, line in ended.items()} == {**ranks, newcomer: 2}
    # It has the device of whom it replaces, as each rank keeps its own.
    assert ended[newcomer]["local_rank"] == 1
    assert {line["local_rank"] for line in ended.values()} == {0, 1, 2}
    assert all(ended[line["pid"]]["local_rank"] == line["place"] for line in second)
    # Whoever came has joined them there, and they have kept their connections.
    assert {(pid, line["engine"]) for pid, line in ended.items() if pid != newcomer} < engines
    assert {line["size"] for line in ended.values()} == {3}
    # Whoever came has the state of the others.
    assert len({(line["step"], line["total"]) for line in ended.values()}) == 1
    assert "ringrun: rank 1 on localhost was killed by SIGKILL" in done.stderr
    assert "the others go on, and it is started again in 1 s" in done.stderr


_DIES = "if (rank, life, state.step) == ({rank}, 0, 5): os.kill(os.getpid(), signal.SIGKILL)"


def test_two_join_the_ranks_that_are_left_one_after_the_other(ringrun: Ringrun, script: Script) -> None:
    dies = _DIES.format(rank=1) + "\n        " + _DIES.format(rank=2)
    name = train(script, before=dies, goes_on="state.step < 10 or ringcore.size() < 4")
    done = ringrun("-np", "4", "--min-np", "2", *AT_ONCE, name)
    assert done.returncode == 0, done.stderr
    first, ended = told(ringrun.directory, "begin")[:4], told(ringrun.directory, "end")
    assert {(line["rank"], line["size"]) for line in ended} == {(rank, 4) for rank in range(4)}
    assert len(engines(first) & engines(ended)) == 2, "those that were left have kept their connections"
    assert len({(line["step"], line["total"]) for line in ended}) == 1


def test_so_many_ranks_that_they_agree_along_a_tree_lose_one_of_its_inner_ones_and_get_another(
    ringrun: Ringrun, script: Script
) -> None:
    ranks = _native.DIRECT_MEMBERS + 2
    ringrun.environ["RINGCORE_TRANSPORT"] = "tcp"  # each is a host of its own
    name = train(script, before=_DIES.format(rank=1), goes_on=f"state.step < 10 or ringcore.size() < {ranks}")
    done = ringrun("-np", str(ranks), "--min-np", "2", *AT_ONCE, name)
    assert done.returncode == 0, done.stderr
    first, ended = told(ringrun.directory, "begin")[:ranks], told(ringrun.directory, "end")
    assert {(line["rank"], line["size"]) for line in ended} == {(rank, ranks) for rank in range(ranks)}
    assert len(engines(first) & engines(ended)) == ranks - 1, "those that were left have kept their connections"
    assert len({(line["step"], line["total"]) for line in ended}) == 1


def test_those_who_are_left_sum_on_at_the_switch_and_so_does_who_joins_them(
    ringrun: Ringrun, script: Script, tmp_path: Path
) -> None:
    key = write_key(tmp_path / "switch-key")
    ringrun.environ.update(RINGCORE_SWITCH_KEY_FILE=str(key), RINGCORE_TRANSPORT="tcp")
    name = train(
        script,
        # Whoever joins comes when those who are left have summed at the switch.
        first='if life == 1:\n    while not os.path.exists("switch.0.0.2"): time.sleep(0.01)',
        before=f"""
        runtime = ringcore.job.state.context().runtime
        runtime.start_timeline()
        for call in range(20):
            sums = ringcore.allreduce(np.full(70_000, ringcore.rank() + 1, np.float32), op=ringcore.Sum, name="large")
            size = ringcore.size()
            assert (sums == size * (size + 1) // 2).all(), (call, size, sums[:3])
        if any(span[1] == "switch" for span in runtime.stop_timeline()):
            open(f"switch.{{rank}}.{{life}}.{{size}}", "w").close()
        ones = np.ones(70_000, np.float32)
        large = [ringcore.allreduce_async(ones, op=ringcore.Sum, name=f"{{n}}") for n in range(9)]
        {_DIES.format(rank=1)}
        assert all((ringcore.synchronize(handle) == ringcore.size()).all() for handle in large)
        if os.path.exists("switch.2.1.3"): open("stop", "w").close()
""",
    )
    with local_switch(key) as running:
        done = ringrun("-np", "3", "--min-np", "2", "--switch", running.address, *AT_ONCE, name)
    assert done.returncode == 0, done.stderr
    first, ended = told(ringrun.directory, "begin")[:3], told(ringrun.directory, "end")
    assert len(engines(first) & engines(ended)) == 2, "those that were left have kept their connections"
    assert len({(line["step"], line["total"]) for line in ended}) == 1
    summed = {path.name.removeprefix("switch.") for path in tmp_path.glob("switch.*")}
    assert summed == {"0.0.3", "1.0.3", "2.0.3", "0.0.2", "2.0.2", "2.1.3"}


def test_ranks_go_on_without_a_switch_that_stays_away_and_so_does_who_joins_them(
    ringrun: Ringrun, script: Script, tmp_path: Path
) -> None:
    key = write_key(tmp_path / "switch-key")
    ringrun.environ.update(RINGCORE_SWITCH_KEY_FILE=str(key), RINGCORE_SWITCH_TIMEOUT_S="1", RINGCORE_TRANSPORT="tcp")
    name = train(
        script,
        prepares="sizes = []\nringcore.on_membership_change(lambda: sizes.append(ringcore.size()))",
        # It is killed in the midst of the trials, of which the switch has its turns.
        before="""
        runtime = ringcore.job.state.context().runtime
        runtime.stop_timeline()  # of what has failed
        runtime.start_timeline()
        for call in range(40):
            sums = ringcore.allreduce(np.full(70_000, ringcore.rank() + 1, np.float32), op=ringcore.Sum, name="large")
            size = ringcore.size()
            assert (sums == size * (size + 1) // 2).all(), (call, size, sums[:3])
            if call == 6 and life == 0 and not sizes:
                open(f"going.{rank}", "w").close()
                while not os.path.exists("killed"): time.sleep(0.01)
        carriers = {span[1] for span in runtime.stop_timeline()}
        assert "switch" not in carriers and (sizes or life == 1), (sizes, carriers)
        if (rank, life, sizes) == (1, 0, [3]): os.kill(os.getpid(), signal.SIGKILL)
        if life == 1: open("stop", "w").close()
""",
    )
    words = ["-np", "3", "--min-np", "2", *AT_ONCE]
    with local_switch(key) as running, ringrun.started(*words, "--switch", running.address, name) as job:
        eventually(lambda: all((tmp_path / f"going.{rank}").exists() for rank in range(3)), "all ranks sum")
        running.kill()
        (tmp_path / "killed").touch()
        _, said = job.communicate()
    assert job.returncode == 0, said
    calls, ended = told(ringrun.directory, "begin"), told(ringrun.directory, "end")
    first, without = calls[:3], calls[3:6]
    # Nobody was lost: all have gone on as the ranks that they were, over the connections that they had.
    assert [{(line["place"], line["rank"], line["size"]) for line in lines} for lines in (first, without)] == [
        {(rank, rank, 3) for rank in range(3)}
    ] * 2
    assert engines(first) == engines(without)
    assert f"the switch {running.address} (RINGCORE_SWITCH) has not answered rank" in said
    assert "for 1 s. The ranks give it up" in said and "Remedy: see that ringcore-switch runs there" in said
    assert {line["size"] for line in ended} == {3} and len(engines(first) & engines(ended)) == 2
    assert len({(line["step"], line["total"]) for line in ended}) == 1


def test_nobody_waits_for_what_a_script_does_before_it_trains(ringrun: Ringrun, script: Script) -> None:
    name = train(
        script,
        # Whoever comes later has no model yet, and waits for the others to train on.
        prepares="""
if life == 1:
    assert (ringcore.rank(), ringcore.size()) == (2, 3)  # what it will be
    open("connected", "w").close()
    while not os.path.exists("trained"): time.sleep(0.01)
""",
        before=f"""
        {_DIES.format(rank=1)}
        if rank == 0 and os.path.exists("connected"):
            seen = globals().setdefault("seen", state.step)
            if state.step == seen + 20: open("trained", "w").close()
""",
        goes_on="not os.path.exists('trained') or ringcore.size() < 3",
    )
    done = ringrun("-np", "3", "--min-np", "2", *AT_ONCE, name)
    assert done.returncode == 0, done.stderr
    ended = told(ringrun.directory, "end")
    assert {line["size"] for line in ended} == {3} and len({(line["step"], line["total"]) for line in ended}) == 1


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_who_joins_and_is_not_ready_keeps_no_other_one_from_joining(
    ringrun: Ringrun, script: Script, transport: str
) -> None:
    ringrun.environ["RINGCORE_TRANSPORT"] = transport
    name = train(
        script,
        # Of two that come the first to be connected is ready when the other one has long been a rank.
        prepares="""
if life > 0:
    try:
        os.close(os.open("first", os.O_CREAT | os.O_EXCL))
        while not os.path.exists("trained"): time.sleep(0.01)
    except FileExistsError:
        pass
""",
        before=f"""
        {_DIES.format(rank=1)}
        {_DIES.format(rank=2)}
        {_LARGE}
        if state.step > 5 and ringcore.size() == 3:
            seen = globals().setdefault("seen", state.step)
            if state.step == seen + 20: open("trained", "w").close()
""",
        goes_on="state.step < 6 or ringcore.size() < 4",
    )
    done = ringrun("-np", "4", "--min-np", "2", *AT_ONCE, name, timeout=30)
    assert done.returncode == 0, done.stderr
    first, ended = told(ringrun.directory, "begin")[:4], told(ringrun.directory, "end")
    assert {(line["rank"], line["size"]) for line in ended} == {(rank, 4) for rank in range(4)}
    assert len(engines(first) & engines(ended)) == 2, "those that were left have kept their connections"
    assert len({(line["step"], line["total"]) for line in ended}) == 1


def test_another_state_is_that_of_rank_0_also_on_those_who_were_there_when_others_came(
    ringrun: Ringrun, script: Script
) -> None:
    name = train(
        script, before=_DIES.format(rank=1), goes_on="state.step < 10 or ringcore.size() < 3",
    )  # fmt: skip
    path = ringrun.directory / name
    path.write_text(path.read_text() + """
other = elastic.ObjectState(step=os.getpid(), total=0.0)
elastic.run(lambda state: tell("another", state))(other)
""")  # fmt: skip
    done = ringrun("-np", "3", "--min-np", "2", *AT_ONCE, name)
    assert done.returncode == 0, done.stderr
    lines = told(ringrun.directory, "another")
    assert len(lines) == 3 and {line["step"] for line in lines} == {line["pid"] for line in lines if line["rank"] == 0}


def test_scripts_for_horovod_see_that_somebody_joins_before_they_commit(ringrun: Ringrun, script: Script) -> None:
    name = train(
        script,
        before=f"""
        {_DIES.format(rank=1)}
        if ringcore.size() == 1:
            limit = time.monotonic() + 120
            while state._host_messages.empty():
                assert time.monotonic() < limit, "this rank has not been told that another one joins"
                time.sleep(0.01)
""",
        goes_on="state.step < 6 or ringcore.size() == 1",
        state="elastic.ObjectState(lambda value: ringcore.broadcast_object(value), ringcore.rank, step=0, total=0.0)",
    )
    done = ringrun("-np", "2", "--min-np", "1", *AT_ONCE, name)
    assert done.returncode == 0, done.stderr
    assert [(line["size"], line["step"]) for line in told(ringrun.directory, "begin")][2:] == [(1, 5), (2, 6), (2, 6)]


def test_who_dies_while_it_joins_costs_nobody_anything(ringrun: Ringrun, script: Script) -> None:
    name = train(
        script,
        # Whoever comes is to be rank 2. The second life ends before it meets the ranks, the third as soon as it is one,
        # and the fourth when the others train on, and it is to get their state.
        first="""
import ringcore.elastic.loop, ringcore.job.connect
if life == 1: ringcore.job.connect.connect_with_members = lambda *_: os._exit(3)
if life == 2: ringcore.elastic.loop.find_parts = lambda *_, **__: os._exit(3)
if life == 3: ringcore.elastic.ObjectState.sync = lambda _: os._exit(3)
""",
        before=_DIES.format(rank=1),
        # Nobody ends before whoever comes has the state.
        goes_on="ringcore.allreduce(np.array([state.step < 10 or ringcore.size() < 3]), op=ringcore.Max)[0]",
    )
    done = ringrun("-np", "3", "--min-np", "1", *AT_ONCE, name)
    assert done.returncode == 0, done.stderr
    first, ended = told(ringrun.directory, "begin")[:3], told(ringrun.directory, "end")
    assert {line["size"] for line in ended} == {3} and len({line["total"] for line in ended}) == 1
    assert len(engines(first) & engines(ended)) == 2
    assert (ringrun.directory / "life.2.4").exists() and not (ringrun.directory / "life.2.5").exists()


@pytest.mark.long
def test_who_hangs_while_it_joins_keeps_nobody_waiting_and_is_ended(ringrun: Ringrun, script: Script) -> None:
    # Over TCP nobody may end it but the launcher.
    ringrun.environ.update(RINGCORE_HEARTBEAT_S="1", RINGCORE_TRANSPORT="tcp")
    name = train(
        script,
        # The first of two that come stops when it is connected with the others.
        first="""
from ringcore.job.membership import Membership
tell_met = Membership.tell_met
def stop(self, place):
    tell_met(self, place)
    try:
        os.close(os.open("stopped", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGSTOP)
Membership.tell_met = stop
""",
        before=_DIES.format(rank=1) + "\n        " + _DIES.format(rank=2),
        goes_on="state.step < 10 or ringcore.size() < 4",
    )
    done = ringrun("-np", "4", "--min-np", "2", *AT_ONCE, name)
    assert done.returncode == 0, done.stderr
    calls, ended = told(ringrun.directory, "begin"), told(ringrun.directory, "end")
    assert {line["size"] for line in ended} == {4} and len({line["total"] for line in ended}) == 1
    assert len(engines(calls[:4]) & engines(ended)) == 2, "those that were left have kept their connections"
    # One was let in while the other still hung: nobody waited for that.
    survivor = next(line["pid"] for line in calls[:4] if line["place"] == 0)
    assert [line["size"] for line in calls if line["pid"] == survivor][-2:] == [3, 4]
    assert done.stderr.count("does not answer, and is killed") == 1


def test_who_joins_with_another_model_is_told_and_the_others_go_on(ringrun: Ringrun, script: Script) -> None:
    name = train(
        script,
        first="""
from ringcore import elastic
shape = (3, 5) if life == 1 else (3, 4)
elastic.ObjectState.describe = lambda self: {"dense.bias": "of shape (3,)", "dense.weight": f"of shape {shape}"}
""",
        before=_DIES.format(rank=1),
        goes_on="state.step < 10 or ringcore.size() < 3",
    )
    done = ringrun("-np", "3", "--min-np", "1", *AT_ONCE, name)
    assert done.returncode == 0, done.stderr
    says = "the state of rank 2 is not that of rank 0: dense.weight is of shape (3, 5), and of shape (3, 4) there"
    assert says in done.stderr, done.stderr
    first, ended = told(ringrun.directory, "begin")[:3], told(ringrun.directory, "end")
    assert {line["size"] for line in ended} == {3} and len({line["total"] for line in ended}) == 1
    assert len(engines(first) & engines(ended)) == 2


def test_a_spare_takes_the_place_of_a_lost_rank_and_ends_with_the_job(ringrun: Ringrun, script: Script) -> None:
    words = ["-np", "2", "--min-np", "1", "--spares", "2", "--blacklist-cooldown-range", "60", "60"]
    done = ringrun(*words, train(script, before=_DIES.format(rank=1), goes_on="state.step < 10 or ringcore.size() < 2"))
    assert done.returncode == 0, done.stderr
    calls, ended = told(ringrun.directory, "begin"), told(ringrun.directory, "end")
    assert [line["size"] for line in calls if line["place"] == 0] == [2, 1, 2], "nobody else became a rank"
    assert {line["size"] for line in ended} == {2} and {line["place"] for line in ended} < {0, 2, 3}
    assert len(list(ringrun.directory.glob("life.*"))) == 4
    wrong = ringrun("--min-np", "1", "--spares", "1", "true")
    assert wrong.returncode == 2 and "say by -np or --max-np how many ranks there may be" in wrong.stderr


@pytest.mark.long
def test_who_comes_while_the_others_still_meet_waits_and_who_stops_there_is_ended(
    ringrun: Ringrun, script: Script
) -> None:
    name = train(
        script,
        # Rank 1 stops when it was told to meet rank 0, and only then rank 2 comes, which had ended before.
        first="""
import ringcore.job.connect
connect = ringcore.job.connect._connect
def stop(*args):
    os.close(os.open("stopped", os.O_CREAT))
    os.kill(os.getpid(), signal.SIGSTOP)
if (rank, life) == (1, 0): ringcore.job.connect._connect = stop
if rank == 2 and life == 0: os._exit(3)
while rank == 2 and not os.path.exists("stopped"): time.sleep(0.01)
""",
        goes_on="state.step < 10 or ringcore.size() < 3",
    )
    done = ringrun("-np", "3", "--min-np", "2", "--start-timeout", "20", *AT_ONCE, name)
    assert done.returncode == 0, done.stderr
    assert "ringrun: rank 1 on localhost does not answer, and is killed" in done.stderr
    assert len({line["pid"] for line in told(ringrun.directory, "begin") if line["place"] == 0}) == 1, done.stderr
    assert {line["size"] for line in told(ringrun.directory, "end")} == {3}


_LARGE = "assert ringcore.allreduce(np.ones(1 << 20), op=ringcore.Sum)[-1] == ringcore.size()"


def test_a_process_joins_over_tcp_also_ranks_of_which_one_had_joined_before(ringrun: Ringrun, script: Script) -> None:
    ringrun.environ["RINGCORE_TRANSPORT"] = "tcp"
    dies = f"{_DIES.format(rank=1)}\n        {_DIES.format(rank=2)}\n        {_LARGE}"
    name = train(script, before=dies, goes_on="state.step < 10 or ringcore.size() < 4")
    done = ringrun("-np", "4", "--min-np", "1", *AT_ONCE, name)
    assert done.returncode == 0, done.stderr
    first, ended = told(ringrun.directory, "begin")[:4], told(ringrun.directory, "end")
    assert {(line["rank"], line["size"]) for line in ended} == {(rank, 4) for rank in range(4)}
    assert {line["local_rank"] for line in ended} == set(range(4))
    assert len({(line["step"], line["total"]) for line in ended}) == 1
    assert len(engines(first) & engines(ended)) == 2, "those that were left have kept their connections"


def test_too_few_ranks_wait_for_others_and_end_with_the_failure_that_began_it(ringrun: Ringrun, script: Script) -> None:
    name = train(script, before="if (rank, state.step) == (1, 3): raise ValueError('the cause')")
    words = ["-np", "2", "--min-np", "2", "--elastic-timeout", "0.5", "--blacklist-cooldown-range", "60", "60"]
    done = ringrun(*words, name)
    assert done.returncode == 1
    assert "1 rank is there, and at least 2 must be to go on" in done.stderr
    assert "waiting for rank 1 on localhost to start again, 0.5 s at most (--elastic-timeout)" in done.stderr
    assert done.stderr.splitlines()[-1] == "ValueError: the cause", done.stderr


@pytest.mark.parametrize("comes", [True, False])
def test_who_is_on_its_way_when_the_time_is_over_is_waited_for_as_long_as_it_may_take(
    ringrun: Ringrun, script: Script, comes: bool
) -> None:
    directory = ringrun.directory
    name = train(
        script,
        first="""
if life and rank == 1:
    while not {"come", "fail"} & set(os.listdir()): time.sleep(0.01)
    if os.path.exists("fail"): raise ValueError("on its way")
""",
        before="if (rank, life, state.step) == (1, 0, 3): raise ValueError('the cause')",
    )
    words = ["-np", "2", "--min-np", "2", "--elastic-timeout", "0.2", *AT_ONCE, name]
    with ringrun.started(*words) as process:
        assert process.stderr is not None
        assert any("enough ranks are on their way: waiting for them" in line for line in process.stderr)
        (directory / "stop").touch()
        (directory / ("come" if comes else "fail")).touch()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == (0 if comes else 1), stderr
    assert ("there were less than 2 ranks, too few to go on" in stderr) is not comes
    assert [line["size"] for line in told(directory, "end")] == ([2, 2] if comes else [])


def test_a_rank_that_dies_at_each_start_ends_the_job_at_the_limit(ringrun: Ringrun, script: Script) -> None:
    name = train(script, first="if rank == 1: raise ValueError('at each start')")
    limits = ["--reset-limit", "2", "--blacklist-cooldown-range", "0.01", "0.01"]
    done = ringrun("-np", "2", "--min-np", "1", *limits, name)
    assert done.returncode == 1
    assert "rank 1 has failed 3 times before it met the others (--reset-limit 2)" in done.stderr
    assert done.stderr.splitlines()[-1] == "ValueError: at each start", done.stderr
    assert len(list(ringrun.directory.glob("life.1.*"))) == 3


def test_a_job_of_which_nobody_is_left_ends_with_its_first_failure(ringrun: Ringrun, script: Script) -> None:
    name = train(script, before="if rank == 1: raise ValueError('the cause')\n        if state.step == 2: os._exit(3)")
    done = ringrun("-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "60", "60", name)
    assert done.returncode != 0
    assert "ValueError: the cause" in done.stderr
    done = ringrun("-np", "2", "--min-np", "1", script("raise ValueError(rank)"))
    assert done.returncode == 1 and "Traceback" in done.stderr


def test_a_job_that_is_done_does_not_wait_for_who_is_on_the_way(ringrun: Ringrun, script: Script) -> None:
    name = train(
        script,
        before="if (rank, life, state.step) == (1, 0, 5): os.kill(os.getpid(), signal.SIGKILL)",
        goes_on="state.step < 10 or not os.path.exists('life.1.1')",
        first="while life and rank == 1: time.sleep(0.1)",
    )
    done = ringrun("-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "0.01", "60", name)
    assert done.returncode == 0, done.stderr
    assert "the job ends" not in done.stderr
    assert [line["size"] for line in told(ringrun.directory, "end")] == [1]


def test_a_script_that_fails_on_all_ranks_is_not_started_for_ever(ringrun: Ringrun, script: Script) -> None:
    name = train(
        script,
        first="""
while rank == 1 and not os.path.exists("life.0.1"): time.sleep(0.01)
raise ValueError("on all ranks")
""",
    )
    done = ringrun("-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "0.01", "60", name)
    assert done.returncode == 1
    assert "each rank has failed before it met the others" in done.stderr
    assert done.stderr.splitlines()[-1] == "ValueError: on all ranks"
    assert len(list(ringrun.directory.glob("life.1.*"))) == 1


def test_what_a_program_writes_to_its_launcher_by_mistake_harms_nobody(ringrun: Ringrun, script: Script) -> None:
    name = script(
        """
        fd = int(os.environ["RINGCORE_LAUNCHER_FD"])
        for line in (b"[" * 60000, b"1", b'{"lost": [], "ready": {}}', b"\\xff", b"no end" * 1000):
            os.write(fd, line + b"\\n")
        os.write(fd, b"{")
        """
    )
    done = ringrun("-np", "2", "--min-np", "1", name)
    assert (done.returncode, done.stderr) == (0, "")


def test_ranks_of_a_plain_script_end_together(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "2", "--min-np", "1", script("print(rank)"))
    assert (done.returncode, done.stderr, sorted(done.stdout.splitlines())) == (
        0,
        "",
        ["[0]<stdout> 0", "[1]<stdout> 1"],
    )


def test_hosts_come_and_go_as_the_script_says(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    directory = ringrun.directory
    script_of_hosts = HostScript(directory)
    script_of_hosts.print(["localhost"])
    name = train(script)
    with ringrun.started("--min-np", "1", *script_of_hosts.words, name) as process:
        (first,) = begun(directory, 1)
        assert (first["place"], first["size"]) == (0, 1)
        script_of_hosts.print(["localhost", "127.0.0.1:2"])
        grown = begun(directory, 4)[1:]
        assert {(line["place"], line["rank"], line["size"]) for line in grown} == {(0, 0, 3), (1, 1, 3), (2, 2, 3)}
        assert len({line["step"] for line in grown}) == 1 and grown[0]["step"] >= first["step"]
        script_of_hosts.print(["; touch harmful"])
        script_of_hosts.print(["127.0.0.1"])
        # Who is no more than one of several can leave, and rank 0 is the one that has the state.
        eventually(lambda: told(directory, "begin")[-1]["size"] == 1, "one is left")
        last = told(directory, "begin")[-1]
        assert (last["place"], last["rank"]) == (1, 0)
        assert last["pid"] == next(line["pid"] for line in grown if line["place"] == 1)
        eventually(lambda: not is_alive(first["pid"]), "who has no place any more has ended")
        (directory / "stop").touch()
        assert process.wait(60) == 0
    calls = told(directory, "begin")
    assert engines(calls[4:]) < engines(calls[1:4]), "they met once, and nobody met anew as others left"
    assert not (directory / "harmful").exists()
    assert not any(map(is_alive, pids.read().values()))


@pytest.mark.parametrize(
    ("elastic", "says"),
    [
        ("1", "was killed by SIGKILL"),
        pytest.param("0", "does not answer, and is killed", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_hangs_is_ended_when_the_others_have_lost_it(
    ringrun: Ringrun, script: Script, elastic: str, says: str
) -> None:
    ringrun.environ.update(RINGCORE_HEARTBEAT_S="0.5", RINGCORE_ELASTIC=elastic)
    name = train(
        script,
        before="if (rank, life, state.step) == (1, 0, 5): os.kill(os.getpid(), signal.SIGSTOP)",
        goes_on="state.step < 10 or ringcore.size() < 2",
    )
    done = ringrun("-np", "2", "--min-np", "1", name)
    assert done.returncode == 0, done.stderr
    assert f"ringrun: rank 1 on localhost {says}" in done.stderr
    calls = told(ringrun.directory, "begin")
    assert [line["size"] for line in calls] == [2, 2, 1, 2, 2]
    # Where the engine is not to go on by itself the ranks meet anew, when one is lost and when one comes.
    engines = {line["engine"] for line in calls if line["pid"] == calls[2]["pid"]}
    assert len(engines) == (1 if elastic == "1" else 3)


def test_a_signal_to_the_launcher_ends_an_elastic_job(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    with ringrun.started("-np", "2", "--min-np", "1", train(script)) as process:
        eventually(lambda: len(told(ringrun.directory, "begin")) == 2, "both have begun")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not any(map(is_alive, pids.read().values()))


@pytest.mark.parametrize(
    ("text", "says"), [("exit 7", "failed with exit code 7"), ("echo 'a b'", "printed 'a b', which is no host")]
)
def test_a_discovery_script_that_cannot_be_used_is_named(
    ringrun: Ringrun, script: Script, text: str, says: str
) -> None:
    (ringrun.directory / "discover.sh").write_text(f"#!/bin/sh\n{text}\n")
    (ringrun.directory / "discover.sh").chmod(0o755)
    words = ["--min-np", "1", "--elastic-timeout", "0.1", "--host-discovery-script", "./discover.sh"]
    done = ringrun(*words, script("pass"))
    assert done.returncode == 1
    assert (
        "discover.sh" in done.stderr
        and says in done.stderr
        and "waiting for free slots from ./discover.sh" in done.stderr
    )


@pytest.mark.parametrize(
    ("command", "says"),
    [("./nothing", "cannot be run: No such file or directory"), ("sh -c 'kill -9 $$'", "sh was killed by signal 9")],
)
def test_a_drain_command_that_says_nothing_is_named(ringrun: Ringrun, script: Script, command: str, says: str) -> None:
    done = ringrun("-np", "1", "--min-np", "1", "--drain-when", command, train(script, goes_on="state.step < 1"))
    assert done.returncode == 0, done.stderr
    assert "--drain-when: " in done.stderr and says in done.stderr


def test_a_job_is_told_to_grow_to_shrink_and_to_let_a_rank_go(ringrun: Ringrun, script: Script, pids: Pids) -> None:
    directory = ringrun.directory

    def order(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ringcore", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=ringrun.environ)

    job = f"test-{os.getpid()}"
    words = ["-np", "2", "--min-np", "1", "--rdzv-id", job, train(script)]
    with ringrun.started(*words) as process:
        begun(directory, 2)
        twin = ringrun(*words)
        assert twin.returncode == 2 and f"there is a job '{job}' already" in twin.stderr
        assert order("scale", job, "+1").stdout == "3 ranks are wanted from now on\n"
        grown = begun(directory, 5)[2:]
        assert {line["size"] for line in grown} == {3}
        assert order("drain", job, "0").stdout.startswith("rank 0 leaves at the next commit, ")
        smaller = begun(directory, 7)[5:]
        assert {(line["place"], line["rank"], line["size"]) for line in smaller} == {(1, 0, 2), (2, 1, 2)}
        eventually(lambda: order("drain", job, "0").returncode == 1, "rank 0 has gone")
        assert "there is no rank 0 that could leave; there are ranks 1, 2" in order("drain", job, "0").stderr
        status = order("status", job).stdout
        assert f"{job}: 2 ranks, " in status, status
        assert "rank 0, [1] in what it prints and for `ringcore drain`, on " in status, status
        assert "rank 1, [2] in what it prints and for `ringcore drain`, on " in status, status
        stacks = order("stacks", job).stdout
        assert "rank 0:\n" in stacks and "rank 1:\n" in stacks and "have left" not in stacks, stacks
        assert order("scale", job, "=1").stdout == "1 rank is wanted from now on\n"
        assert [(line["place"], line["size"]) for line in begun(directory, 8)[7:]] == [(1, 1)]
        eventually(lambda: order("status", job).stdout.startswith(f"{job}: 1 rank, "), "the other one has left")
        assert "have left" not in order("stacks", job).stdout
        last = order("drain", job, "1")
        assert last.returncode == 1 and "without rank 1 0 ranks are less than --min-np 1. Remedy: " in last.stderr
        assert "0 ranks are less than --min-np 1" in order("scale", job, "-1").stderr
        assert "'many' is no number of ranks" in order("scale", job, "many").stderr
        assert job in order("scale", "another", "+1").stderr, "the jobs that there are"
        (directory / "stop").touch()
        assert process.wait(60) == 0
    assert not any(map(is_alive, pids.read().values()))


def test_ranks_that_were_told_to_leave_count_no_more(ringrun: Ringrun, script: Script) -> None:
    # None of the three comes to its next commit before all orders were given.
    name = script(
        """
        import ringcore
        from ringcore import elastic
        ringcore.init()
        @elastic.run
        def train(state):
            open(f"begun.{rank}", "w").close()
            while not os.path.exists("stop"): time.sleep(0.01)
        train(elastic.ObjectState(step=0))
        """
    )
    job = f"test-{os.getpid()}-drained"

    def drain(rank: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ringcore", "drain", job, str(rank)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=ringrun.environ)

    with ringrun.started("-np", "3", "--min-np", "2", "--rdzv-id", job, name) as process:
        eventually(lambda: len(list(ringrun.directory.glob("begun.*"))) == 3, "all have met")
        for _ in range(2):  # Twice is as once.
            assert drain(0).returncode == 0
        assert "without rank 2 1 rank is less than --min-np 2. Remedy: " in drain(2).stderr
        (ringrun.directory / "stop").touch()
        assert process.wait(60) == 0
