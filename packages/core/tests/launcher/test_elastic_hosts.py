"""Elastic jobs over ssh: hosts come and go, and a failed rank of another host is started again there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from support.elastic import HostScript, begun, told, train
from support.namespaces import Host, environ_with_ssh, namespaces
from support.processes import Pids, Ringrun, is_alive

Script = Callable[..., str]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with namespaces(3) as made:
        yield made


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
        assert (alone["place"], alone["size"]) == (0, 1)
        assert {line["size"] for line in both} == {2} and len({line["total"] for line in both}) == 1
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
