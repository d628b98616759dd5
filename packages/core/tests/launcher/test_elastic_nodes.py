"""Elastic jobs whose nodes come by themselves: a ringrun on each, and one that has no ranks and decides."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.elastic import AT_ONCE, begun, engines, told, train
from support.namespaces import Host, namespaces
from support.processes import Pids, Ringrun, eventually, is_alive

Script = Callable[..., str]
Start = Callable[..., "subprocess.Popen[str]"]
PORT = 29400
LAUNCHER = ["--nnodes", "1:3", "--listen", str(PORT), "--key-file", "job.key"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with namespaces(3) as made:
        yield made


@pytest.fixture
def start(ringrun: Ringrun, hosts: list[Host], pids: Pids) -> Iterator[Start]:
    """Starts a ringrun on a host; none of them can run anything on another."""
    write_key(ringrun.directory / "job.key")
    ringrun.environ["OMP_NUM_THREADS"] = "1"
    with contextlib.ExitStack() as stack:

        def begin(host: int, *words: str) -> subprocess.Popen[str]:
            return stack.enter_context(ringrun.started(*words, prefix=hosts[host].command([], ringrun.directory)))

        yield begin


def write_key(path: Path) -> None:
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(os.urandom(32))


def node(*words: str) -> list[str]:
    return ["--nnodes", "1:3", "--rdzv-endpoint", f"host0:{PORT}", "--key-file", "job.key", *words]


def test_a_node_that_vanishes_and_one_that_comes_again(
    ringrun: Ringrun, script: Script, pids: Pids, start: Start
) -> None:
    directory = ringrun.directory
    name = train(script)
    launcher = start(0, *LAUNCHER, "-np", "2", *AT_ONCE)
    nodes = [start(host, *node(name)) for host in (1, 2)]
    first = begun(directory, 2)
    assert {(line["place"], line["size"]) for line in first} == {(0, 2), (1, 2)}
    nodes[1].kill()  # And its ranks with it, as those of a pod.
    (alone,) = begun(directory, 3)[2:]
    assert alone["size"] == 1 and alone["engine"] in {line["engine"] for line in first}
    again = start(2, *node(name))
    both = begun(directory, 5)[3:]
    assert {line["size"] for line in both} == {2} and len({line["total"] for line in both}) == 1
    assert engines([alone]) < engines(both), "who was left keeps its process and its connections"
    assert {line["place"] for line in both} == {0, 1}, "it has the place of the one before it"
    (directory / "stop").touch()
    said, told_by_launcher = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, told_by_launcher
    assert said == ""
    assert "host2 (slot 0): this node has gone" in told_by_launcher
    for process in (nodes[0], again):
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    ended = told(directory, "end")
    assert [line["size"] for line in ended] == [2, 2] and len({line["total"] for line in ended}) == 1
    assert not any(map(is_alive, pids.read().values()))
