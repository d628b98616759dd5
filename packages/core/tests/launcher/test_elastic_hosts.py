"""Elastic jobs over ssh: hosts come and go, and a failed rank of another host is started again there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.elastic import AT_ONCE, HostScript, begun, told, train
from support.namespaces import Host, environ_with_ssh, namespaces
from support.processes import Pids, Ringrun, eventually, is_alive

Script = Callable[..., str]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with namespaces(3) as made:
        yield made


@pytest.fixture
def cut(hosts: list[Host]) -> Iterator[Callable[[int], None]]:
    """Pulls the cable out of a host until the test ends."""
    pulled = []

    def pull(number: int) -> None:
        hosts[number].set_link(up=False)
        pulled.append(number)

    yield pull
    for number in pulled:
        hosts[number].set_link(up=True)


def test_ranks_on_hosts_that_come_and_go(ringrun: Ringrun, script: Script, pids: Pids, hosts: list[Host]) -> None:
    directory = ringrun.directory
    ringrun.environ = environ_with_ssh(hosts[0], ringrun.environ)
    discovery = HostScript(directory)
    discovery.print(["host0", "host1"])
    words = ["--min-np", "1", "-np", "2", *discovery.words, train(script)]
    with ringrun.started(*words, prefix=hosts[0].command([], directory)) as process:
        first = begun(directory, 2)
        assert {(line["place"], line["size"]) for line in first} == {(0, 2), (1, 2)}
        os.kill(next(line["pid"] for line in first if line["place"] == 1), signal.SIGKILL)
        alone, *both = begun(directory, 5)[2:]
        # The launcher's vote is enough: nothing was connected anew.
        assert (alone["place"], alone["size"]) == (0, 1)
        assert alone["engine"] in {line["engine"] for line in first}
        assert {line["size"] for line in both} == {2} and len({line["total"] for line in both}) == 1
        assert alone["engine"] in {line["engine"] for line in both}, "nor when the other came again"
        discovery.print(["host0", "host2"])
        alone, *moved = begun(directory, 8)[5:]
        assert (alone["place"], alone["size"]) == (0, 1)
        assert {line["size"] for line in moved} == {2} and first[0]["place"] in {line["place"] for line in moved}
        (directory / "stop").touch()
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    assert "rank 1 on host1 was killed by SIGKILL" in stderr
    ended = told(directory, "end")
    assert [line["size"] for line in ended] == [2, 2] and len({line["total"] for line in ended}) == 1
    assert alone["pid"] in {line["pid"] for line in first}, "who was there from the beginning is still"
    assert not any(map(is_alive, pids.read().values()))


def test_ranks_leave_a_host_that_is_about_to_go(
    ringrun: Ringrun, script: Script, pids: Pids, hosts: list[Host]
) -> None:
    directory = ringrun.directory
    ringrun.environ = environ_with_ssh(hosts[0], ringrun.environ)
    (directory / "notice").write_text("#!/bin/sh\ntest -e going.$HOROVOD_HOSTNAME\n")
    (directory / "notice").chmod(0o755)
    words = ["--min-np", "1", "-np", "2", "-H", "host0,host1", "--drain-when", "./notice", train(script)]
    with ringrun.started(*words, prefix=hosts[0].command([], directory)) as process:
        begun(directory, 2)
        (directory / "going.host1").touch()
        left = begun(directory, 3)[2]
        assert (left["place"], left["size"]) == (0, 1)
        (directory / "stop").touch()
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    assert "[1]<stderr> ringrun: --drain-when: this host is about to go; its ranks leave at the next commit" in stderr
    assert [(line["place"], line["size"]) for line in told(directory, "end")] == [(0, 1)]
    assert not any(map(is_alive, pids.read().values()))


def agent_of(rank: int) -> int:
    """The process that has started this one."""
    status = Path(f"/proc/{rank}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])


def test_ranks_leave_when_their_agent_is_told_to_end(
    ringrun: Ringrun, script: Script, pids: Pids, hosts: list[Host]
) -> None:
    directory = ringrun.directory
    ringrun.environ = environ_with_ssh(hosts[0], ringrun.environ)
    words = ["--min-np", "1", "-np", "2", "-H", "host0,host1", *AT_ONCE, train(script)]
    with ringrun.started(*words, prefix=hosts[0].command([], directory)) as process:
        first = begun(directory, 2)
        os.kill(agent_of(pids.read()["1.0"]), signal.SIGTERM)
        left = begun(directory, 3)[2]
        assert (left["place"], left["size"], left["step"] > 0) == (0, 1, True)
        assert left["engine"] in {line["engine"] for line in first}, "nothing was connected anew"
        eventually(lambda: not is_alive(pids.read()["1.0"]), "the rank of the other host has left")
        (directory / "stop").touch()
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    told_so = "[1]<stderr> ringrun: SIGTERM: the agent of this host is to end; its ranks leave at the next commit"
    assert told_so in stderr
    assert "rank 1 on host1" not in stderr, "no rank was lost"
    assert "goes back to its last commit" not in stderr, "no step was lost"
    assert not list(directory.glob("life.1.1")), "nobody came in its place"


def test_an_agent_that_is_told_twice_to_end_ends_at_once(
    ringrun: Ringrun, script: Script, pids: Pids, hosts: list[Host]
) -> None:
    directory = ringrun.directory
    ringrun.environ = environ_with_ssh(hosts[0], ringrun.environ)
    # Rank 1 comes to no commit any more.
    name = train(script, before="if rank == 1: signal.pause()")
    words = ["--min-np", "1", "-np", "2", "-H", "host0,host1", "--blacklist-cooldown-range", "60", "60", name]
    with ringrun.started(*words, prefix=hosts[0].command([], directory)) as process:
        begun(directory, 2)
        agent = agent_of(pids.read()["1.0"])
        os.kill(agent, signal.SIGTERM)
        assert process.stderr is not None
        assert "its ranks leave at the next commit" in process.stderr.readline()
        assert is_alive(agent) and is_alive(pids.read()["1.0"])
        os.kill(agent, signal.SIGTERM)
        eventually(lambda: not is_alive(pids.read()["1.0"]), "the rank has ended")


_LARGE = "assert ringcore.allreduce(np.ones(1 << 18), op=ringcore.Sum)[-1] == ringcore.size()"
_MEMORY = "tell(str(ringcore.job.state.context().host_of), state)"


def test_processes_of_old_and_new_hosts_join_ranks_that_keep_their_connections(
    ringrun: Ringrun, script: Script, pids: Pids, hosts: list[Host]
) -> None:
    directory = ringrun.directory
    ringrun.environ = environ_with_ssh(hosts[0], ringrun.environ)
    discovery = HostScript(directory)
    discovery.print(["host0:2"])
    name = train(script, before=f"{_MEMORY}\n        {_LARGE}")
    words = ["--min-np", "1", "-np", "2", "--network-interface", "eth0", *discovery.words, name]
    with ringrun.started(*words, prefix=hosts[0].command([], directory)) as process:
        first = begun(directory, 2)

        def of_size(size: int, count: int) -> list[dict[str, Any]]:
            eventually(
                lambda: [line["size"] for line in told(directory, "begin")].count(size) >= count,
                f"{count} calls with {size} ranks have begun",
            )
            return [line for line in told(directory, "begin") if line["size"] == size]

        discovery.print(["host0:2", "host1:2"])
        of_size(4, 4)  # One comes after the other, or both at once.
        eventually(lambda: told(directory, "[0, 0, 1, 1]"), "those of a host share memory")
        discovery.print(["host0:3", "host1:2"])
        last = of_size(5, 5)
        eventually(lambda: told(directory, "[0, 0, 1, 1, 0]"), "also with who comes later")
        local_ranks = [line["local_rank"] for line in sorted(last, key=lambda line: line["rank"])]
        assert [local_ranks[rank] for rank in (0, 1, 4)] == [0, 1, 2] and sorted(local_ranks[2:4]) == [0, 1]
        os.kill(next(line["pid"] for line in last if line["rank"] == 2), signal.SIGKILL)
        of_size(5, 5 + 5)
        (directory / "stop").touch()
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    ended = told(directory, "end")
    assert [line["size"] for line in ended] == [5] * 5 and len({line["total"] for line in ended}) == 1
    engines = {line["pid"]: line["engine"] for line in first}
    assert all(line["engine"] == engines.get(line["pid"], line["engine"]) for line in ended)
    assert not any(map(is_alive, pids.read().values()))


# Nobody waits long for who is silent: not the ranks, not the agents.
SHORT = {"RINGCORE_HEARTBEAT_S": "0.5"}
WORDS = ["--min-np", "1", "--agent-timeout", "2", "--blacklist-cooldown-range", "60", "60"]


def test_of_two_halves_the_one_with_the_launcher_goes_on(
    ringrun: Ringrun, script: Script, pids: Pids, hosts: list[Host], cut: Callable[[int], None]
) -> None:
    directory = ringrun.directory
    ringrun.environ = environ_with_ssh(hosts[0], {**ringrun.environ, **SHORT})
    words = ["-np", "4", "-H", "host0:2,host1:2", *WORDS, train(script)]
    with ringrun.started(*words, prefix=hosts[0].command([], directory)) as process:
        first = begun(directory, 4)
        cut(1)
        half = begun(directory, 6)[4:]
        assert {(line["place"], line["rank"], line["size"]) for line in half} == {(0, 0, 2), (1, 1, 2)}
        assert {line["engine"] for line in half} < {line["engine"] for line in first}
        others = [line["pid"] for line in first if line["place"] in (2, 3)]
        eventually(lambda: not any(map(is_alive, others)), "the agent that hears nothing has ended its ranks")
        (directory / "stop").touch()
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    assert len(told(directory, "begin")) == 6, "only one half went on"
    assert not any(map(is_alive, pids.read().values()))


@pytest.mark.long
def test_most_ranks_go_on_without_the_launcher_and_the_rest_only_when_those_have_ended(
    ringrun: Ringrun, script: Script, pids: Pids, hosts: list[Host], cut: Callable[[int], None]
) -> None:
    directory = ringrun.directory
    ringrun.environ = environ_with_ssh(hosts[0], {**ringrun.environ, **SHORT})
    words = ["-np", "3", "-H", "host0,host1,host2", *WORDS, train(script)]
    with ringrun.started(*words, prefix=hosts[0].command([], directory)) as process:
        begun(directory, 3)
        cut(0)
        most = begun(directory, 5)[3:]
        assert {(line["place"], line["size"]) for line in most} == {(1, 2), (2, 2)}
        (alone,) = begun(directory, 6)[5:]
        assert (alone["place"], alone["size"]) == (0, 1)
        assert not any(is_alive(line["pid"]) for line in most)
        (directory / "stop").touch()
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    assert not any(map(is_alive, pids.read().values()))


@pytest.mark.long
def test_most_of_many_ranks_go_on_without_a_host_of_all_that_would_lead_them(
    ringrun: Ringrun, script: Script, pids: Pids, hosts: list[Host], cut: Callable[[int], None]
) -> None:
    directory = ringrun.directory
    ringrun.environ = environ_with_ssh(hosts[0], {**ringrun.environ, **SHORT})
    # More than agree each with each: with most ranks of the host that is cut off nobody else is connected.
    words = ["-np", "18", "-H", "host0:6,host1:6,host2:6", *WORDS, "--agent-timeout", "10", train(script)]
    with ringrun.started(*words, prefix=hosts[0].command([], directory)) as process:
        first = begun(directory, 18)
        cut(0)
        most = begun(directory, 30)[18:]
        assert {(line["place"], line["size"]) for line in most} == {(place, 12) for place in range(6, 18)}
        assert {line["engine"] for line in most} < {line["engine"] for line in first}
        (directory / "stop").touch()
        process.communicate(timeout=60)
    assert not any(map(is_alive, pids.read().values()))


# In the place of ssh: the first connection leads to an agent, of the others nothing is heard.
_SSH_ONCE = """#!/bin/sh
if mkdir connected 2> /dev/null; then exec {ssh} "$@"; fi
echo $$ > ssh.new
mv ssh.new pid.ssh
while :; do sleep 0.1; done
"""


def test_a_job_that_is_done_does_not_wait_for_a_host_that_has_yet_to_answer(
    ringrun: Ringrun, script: Script, pids: Pids, hosts: list[Host]
) -> None:
    directory = ringrun.directory
    environ = environ_with_ssh(hosts[0], ringrun.environ)
    (directory / "bin").mkdir()
    (directory / "bin" / "ssh").write_text(_SSH_ONCE.format(ssh=hosts[0].directory / "bin" / "ssh"))
    (directory / "bin" / "ssh").chmod(0o755)
    ringrun.environ = {**environ, "PATH": f"{directory}/bin{os.pathsep}{environ['PATH']}"}
    words = ["-np", "2", "--min-np", "1", "-H", "host0,host1", "--blacklist-cooldown-range", "0.01", "0.01"]
    with ringrun.started(*words, train(script), prefix=hosts[0].command([], directory)) as process:
        far = next(line["pid"] for line in begun(directory, 2) if line["place"] == 1)
        os.kill(far, signal.SIGKILL)
        eventually(lambda: "ssh" in pids.read(), "the host is connected to once more")
        (directory / "stop").touch()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "did not end" not in stderr
    assert [line["size"] for line in told(directory, "end")] == [1]
    assert not any(map(is_alive, pids.read().values()))
