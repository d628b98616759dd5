"""Elastic jobs whose nodes come by themselves: a ringrun on each, and one that has no ranks and decides."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ringcore._errors import BootstrapError
from ringcore.bootstrap.auth import TurnedAwayError, WrongKeyError
from ringcore.bootstrap.sockets import RanksMissingError
from ringcore.launcher._frames import Kind, ProtocolError
from ringcore.launcher._job import HostJob, RankJob
from ringcore.launcher._layout import JobLayout
from ringcore.launcher._options import parse
from ringcore.launcher.node import OwnNode, _Slot, own_job
from support.elastic import AT_ONCE, begun, engines, told, train
from support.namespaces import Host, namespaces
from support.processes import RINGRUN, Pids, Ringrun, eventually, is_alive

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

        def begin(
            host: int, *words: str, program: Sequence[str] = RINGRUN, stdout: Any = subprocess.PIPE
        ) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                hosts[host].command([*program, *words], ringrun.directory), env=ringrun.environ, text=True,
                stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield begin


def write_key(path: Path) -> None:
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(os.urandom(32))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def node(*words: str) -> list[str]:
    return ["--nnodes", "1:3", "--rdzv-endpoint", f"host0:{PORT}", "--key-file", "job.key", *words]


def test_a_node_that_vanishes_and_one_that_comes_again(
    ringrun: Ringrun, script: Script, pids: Pids, start: Start
) -> None:
    directory = ringrun.directory
    name = train(script)
    launcher = start(0, *LAUNCHER, "-np", "2", "--verbose", *AT_ONCE)
    nodes = [start(host, *node(name)) for host in (1, 2)]
    first = begun(directory, 2)
    assert {line["size"] for line in first} == {2}
    nodes[1].kill()  # And its ranks with it, as those of a pod.
    (alone,) = begun(directory, 3)[2:]
    assert alone["size"] == 1 and alone["engine"] in {line["engine"] for line in first}
    again = start(2, *node(name))
    both = begun(directory, 5)[3:]
    assert {line["size"] for line in both} == {2} and len({line["total"] for line in both}) == 1
    assert engines([alone]) < engines(both), "who was left keeps its process and its connections"
    (directory / "stop").touch()
    said, told_by_launcher = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, told_by_launcher
    assert said == ""
    assert "host2 (slot 0): this node has gone" in told_by_launcher
    places = re.findall(r"(host\d) answers: place (\d)", told_by_launcher)
    assert len(places) == 3 and len(set(places)) == 2, "who comes again has the place of the one before it"
    for process in (nodes[0], again):
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    ended = told(directory, "end")
    assert [line["size"] for line in ended] == [2, 2] and len({line["total"] for line in ended}) == 1
    assert not any(map(is_alive, pids.read().values()))


def test_a_rank_that_fails_is_started_again_in_its_slot(
    ringrun: Ringrun, script: Script, pids: Pids, start: Start
) -> None:
    directory = ringrun.directory
    words = node("--nproc-per-node", "2", train(script, first='print(f"it is {os.getpid()}")'))
    launcher = start(0, "--min-np", "1", "--max-np", "3", *LAUNCHER[2:], "-np", "3", *AT_ONCE)
    nodes = [start(host, *words) for host in (1, 2)]
    first = begun(directory, 3)
    assert {line["size"] for line in first} == {3}, "one of four slots stays free"
    os.kill(first[0]["pid"], signal.SIGKILL)
    eventually(
        lambda: {line["size"] for line in told(directory, "begin")[-3:]} == {3} and len(told(directory, "begin")) >= 6,
        "another process has joined the two",
    )
    (directory / "stop").touch()
    _, told_by_launcher = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, told_by_launcher
    assert re.search(r"rank \d on host[12] was killed by SIGKILL", told_by_launcher)
    said = [process.communicate(timeout=60) for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0]
    # What ranks print stays on their node, as does that one of them was killed.
    assert sum(out.count("it is ") for out, _ in said) == 4
    assert sum("here was killed by SIGKILL" in err for _, err in said) == 1


def test_a_node_is_missed_also_when_its_first_process_has_failed(
    ringrun: Ringrun, script: Script, pids: Pids, start: Start
) -> None:
    directory = ringrun.directory
    name = train(script)
    launcher = start(0, *LAUNCHER, "-np", "2", *AT_ONCE)
    nodes = [start(host, *node(name)) for host in (1, 2)]
    victim = begun(directory, 2)[0]["pid"]
    lost = next(process for process in nodes if parent_of(victim) == process.pid)
    os.kill(victim, signal.SIGKILL)
    begun(directory, 5)  # One alone, and two.
    lost.kill()
    assert begun(directory, 6)[5]["size"] == 1
    (directory / "stop").touch()
    _, told_by_launcher = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, told_by_launcher
    assert "this node has gone" in told_by_launcher


def test_a_rank_that_leaves_by_a_signal_is_no_failure_to_its_node(
    ringrun: Ringrun, script: Script, pids: Pids, start: Start
) -> None:
    name = script(
        "import numpy as np, ringcore; ringcore.init(); write_pid(rank)\n"
        "while not os.path.exists('end'): ringcore.allreduce(np.ones(1))"
    )
    start(0, *LAUNCHER, "-np", "2")
    nodes = [start(host, *node(name)) for host in (1, 2)]
    leaving = pids.wait(2)["1"]
    os.kill(leaving, signal.SIGTERM)
    eventually(lambda: not is_alive(leaving), "it has left")
    (ringrun.directory / "end").touch()
    ended = [process.communicate(timeout=60)[1] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], ended
    assert not any("SIGTERM" in stderr for stderr in ended)


def test_nothing_is_started_on_a_node_that_has_gone(ringrun: Ringrun, script: Script, pids: Pids, start: Start) -> None:
    directory = ringrun.directory
    name = train(script)
    launcher = start(0, *LAUNCHER, "-np", "2", "--blacklist-cooldown-range", "0", "0")
    nodes = [start(host, *node(name)) for host in (1, 2)]
    begun(directory, 2)
    nodes[1].kill()
    assert begun(directory, 3)[2]["size"] == 1
    (directory / "stop").touch()
    _, told_by_launcher = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, told_by_launcher
    assert nodes[0].wait(60) == 0


def test_a_node_that_is_told_to_end_lets_its_ranks_leave(
    ringrun: Ringrun, script: Script, pids: Pids, start: Start
) -> None:
    directory = ringrun.directory
    name = train(script)
    launcher = start(0, *LAUNCHER, "-np", "2")
    nodes = [start(host, *node(name)) for host in (1, 2)]
    first = begun(directory, 2)
    nodes[1].send_signal(signal.SIGTERM)
    _, stderr = nodes[1].communicate(timeout=60)
    # A cluster that saw 0 would not start it again.
    assert nodes[1].returncode == 128 + signal.SIGTERM, stderr
    (alone,) = begun(directory, 3)[2:]
    assert alone["size"] == 1 and alone["engine"] in {line["engine"] for line in first}
    again = start(2, *node(name))
    assert {line["size"] for line in begun(directory, 5)[3:]} == {2}
    (directory / "stop").touch()
    _, told_by_launcher = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, told_by_launcher
    assert "lost" not in told_by_launcher and "gone" not in told_by_launcher and "exit code" not in told_by_launcher
    assert [process.wait(60) for process in (nodes[0], again)] == [0, 0]


def test_a_node_that_is_told_to_end_while_it_waits_for_others(
    ringrun: Ringrun, script: Script, pids: Pids, start: Start
) -> None:
    launcher = start(0, "--nnodes", "2:3", *LAUNCHER[2:])
    early = start(1, *node(script("import ringcore; write_pid(rank); ringcore.init()")))
    (rank,) = pids.wait(1).values()
    # The thread that hears the launcher comes with init().
    eventually(lambda: len(os.listdir(f"/proc/{rank}/task")) > 1, "it waits in init()")
    early.terminate()
    _, stderr = early.communicate(timeout=60)
    assert early.returncode == 128 + signal.SIGTERM, stderr
    launcher.terminate()
    assert launcher.wait(60) == 128 + signal.SIGTERM


def test_a_node_that_falls_silent(
    ringrun: Ringrun, script: Script, pids: Pids, start: Start, hosts: list[Host]
) -> None:
    directory = ringrun.directory
    words = node("--heartbeat-s", "0.5", "--nproc-per-node", "2", train(script))
    launcher = start(0, *LAUNCHER, "--nproc-per-node", "2", "-np", "4", "--agent-timeout", "2", *AT_ONCE)
    nodes = [start(host, *words) for host in (1, 2)]
    first = begun(directory, 4)
    hosts[2].set_link(up=False)
    try:
        left = begun(directory, 6)[4:]  # Of four two, and the launcher's vote.
        assert {line["size"] for line in left} == {2} and engines(left) < engines(first)
        _, stderr = nodes[1].communicate(timeout=60)
        assert nodes[1].returncode == 1
        assert "the launcher of this job has gone (nothing was heard for 2 s); the ranks here end" in stderr
    finally:
        hosts[2].set_link(up=True)
    again = start(2, *words)
    eventually(lambda: [line["size"] for line in told(directory, "begin")][-4:] == [4] * 4, "the node has come again")
    (directory / "stop").touch()
    _, told_by_launcher = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, told_by_launcher
    assert [process.wait(60) for process in (nodes[0], again)] == [0, 0]


def test_what_a_failed_job_tells_its_nodes(ringrun: Ringrun, script: Script, pids: Pids, start: Start) -> None:
    name = script("import ringcore; ringcore.init(); raise LookupError('no such row')")
    launcher = start(0, *LAUNCHER, "-np", "2")
    nodes = [start(host, *node(name)) for host in (1, 2)]
    _, told_by_launcher = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert re.search(r"rank \d .*on host[12]", told_by_launcher) and "LookupError: no such row" in told_by_launcher
    for process in nodes:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 1
        assert re.search(r"ringrun: the job has ended: rank \d on host[12] failed with exit code 1", stderr), stderr
        assert "LookupError: no such row" in stderr, "each node shows what its own ranks say"


def test_nodes_end_when_their_launcher_is_killed(ringrun: Ringrun, script: Script, pids: Pids, start: Start) -> None:
    launcher = start(0, *LAUNCHER, "-np", "2")
    nodes = [start(host, *node(train(script))) for host in (1, 2)]
    begun(ringrun.directory, 2)
    launcher.kill()
    for process in nodes:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "the launcher of this job has gone" in stderr
    assert not any(map(is_alive, pids.read().values()))


def test_a_node_that_goes_before_the_job_begins_ends_nothing(
    ringrun: Ringrun, script: Script, pids: Pids, start: Start
) -> None:
    launcher = start(0, "--nnodes", "2:3", *LAUNCHER[2:], *AT_ONCE)
    early = start(1, *node(train(script)))
    pids.wait(1)
    early.kill()
    early.wait()
    nodes = [start(host, *node(train(script))) for host in (1, 2)]
    assert {line["size"] for line in begun(ringrun.directory, 2)} == {2}
    (ringrun.directory / "stop").touch()
    _, told_by_launcher = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, told_by_launcher
    assert [process.wait(60) for process in nodes] == [0, 0]


def test_too_few_nodes(ringrun: Ringrun, script: Script, start: Start) -> None:
    launcher = start(0, "--nnodes", "2:3", *LAUNCHER[2:], "--elastic-timeout", "1")
    alone = start(1, *node(train(script)))
    _, told_by_launcher = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert "there were less than 2 ranks, too few to go on, for 1 s (--elastic-timeout)" in told_by_launcher
    assert alone.wait(60) == 1


def test_who_may_not_or_cannot_come(ringrun: Ringrun, script: Script, pids: Pids, start: Start) -> None:
    name = script("open('ran', 'w').close()")
    nobody = start(1, *node("--start-timeout", "0.3", name))
    _, stderr = nobody.communicate(timeout=60)
    assert nobody.returncode == 2 and "nobody answers at tcp:host0:29400" in stderr
    start(0, *LAUNCHER)
    write_key(ringrun.directory / "other.key")
    stranger = start(1, *node("--key-file", "other.key", name))
    _, stderr = stranger.communicate(timeout=60)
    assert stranger.returncode == 2 and "does not know this job's key" in stderr, stderr
    assert not (ringrun.directory / "ran").exists()


def test_a_launcher_that_may_not_open_as_many_files_turns_nodes_away(
    ringrun: Ringrun, script: Script, start: Start
) -> None:
    launcher = start(0, *LAUNCHER, program=["prlimit", "--nofile=100:100", *RINGRUN])
    refused = start(1, *node(script("open('ran', 'w').close()")))
    assert refused.wait(60) == 1
    launcher.terminate()
    _, stderr = launcher.communicate(timeout=60)
    assert "slot 0 is turned away: the launcher needs" in stderr and "raise the limit" in stderr
    assert launcher.returncode == 128 + signal.SIGTERM and not (ringrun.directory / "ran").exists()


@pytest.mark.parametrize(
    "problem",
    [
        BootstrapError("no answer came in time"),
        BootstrapError("the rendezvous host 'head' does not resolve"),
        TurnedAwayError("the other end closes connections"),
        RanksMissingError("nobody answers"),
    ],
)
def test_a_launcher_that_does_not_answer_yet_is_dialled_again(
    monkeypatch: pytest.MonkeyPatch, problem: BootstrapError
) -> None:
    answers = mock.Mock(side_effect=[problem, problem, "connected"])
    monkeypatch.setattr("ringcore.launcher.node.dial_launcher", answers)
    waiting = mock.Mock(_layout=mock.Mock(rendezvous="tcp:head:29400"), _waits=False)
    assert OwnNode._dial(waiting, 0, time.monotonic() + 60) == "connected"
    assert waiting.say.call_count == 1, "the user is told once"
    answers.side_effect = [problem]
    with pytest.raises(BootstrapError, match=str(problem)):
        OwnNode._dial(waiting, 0, time.monotonic())
    answers.side_effect = [WrongKeyError("another key")]
    with pytest.raises(WrongKeyError):
        OwnNode._dial(waiting, 0, time.monotonic() + 60)


def job_of(rank: int = 0, host: str | None = "head", silence_limit_s: float = 30.0, **environ: str) -> HostJob:
    ranks = (RankJob(rank, environ),)
    return HostJob(ranks, (), "/", {}, {}, host=host, silence_limit_s=silence_limit_s)


def test_words_of_a_launcher_that_no_process_could_be_started_with() -> None:
    options = parse(["--nnodes", "1:2", "--rdzv-endpoint", "head:1", "true"], {})
    layout = JobLayout(1, 1, ())
    assert own_job(job_of(MASTER_ADDR="head"), options, layout, b"").ranks[0].environ == {"MASTER_ADDR": "head"}
    for job in (
        job_of(MASTER_ADDR="a\0b"), job_of(MASTER_ADDR="\ud800"), job_of(host="a\0b"), job_of(rank=1 << 32),
        job_of(silence_limit_s=float("nan")), job_of(silence_limit_s=-1.0), job_of(silence_limit_s=10**400),
    ):  # fmt: skip
        with pytest.raises(ProtocolError):
            own_job(job, options, layout, b"")
    slot = mock.MagicMock()
    for code in (-1, 256):  # The kernel would make 255 of the one, and success of the other.
        with pytest.raises(ProtocolError):
            _Slot._on_frame(slot, Kind.LEAVE, 0, json.dumps({"code": code, "why": ""}).encode())
    assert not slot._node.finish.called


def test_a_node_whose_output_is_lost(ringrun: Ringrun, script: Script, start: Start) -> None:
    launcher = start(0, *LAUNCHER)
    name = script("import ringcore; ringcore.init(); print('x')")
    with open("/dev/full", "w") as full:
        process = start(1, *node(name), stdout=full)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the job has ended well; the exit code is 1 as standard output could not be written" in stderr
    assert launcher.wait(60) == 0


def test_a_node_of_another_version(ringrun: Ringrun, script: Script, start: Start) -> None:
    launcher = start(0, *LAUNCHER)
    (ringrun.directory / "other.py").write_text(
        "import ringcore.launcher.node, sys\nringcore.launcher.node.__version__ = '0.0.1'\n"
        "from ringcore.launcher.main import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    name = script("open('ran', 'w').close()")
    other = start(1, *node(name), program=[sys.executable, "other.py"])
    _, stderr = other.communicate(timeout=60)
    assert other.returncode == 2
    assert "host1 has ringcore 0.0.1, and the launcher of this job" in stderr
    assert not (ringrun.directory / "ran").exists()
    launcher.terminate()
    assert "host1 has ringcore 0.0.1" in launcher.communicate(timeout=60)[1]
    assert launcher.returncode == 128 + signal.SIGTERM, "nobody was there, and it ends at once"


def test_what_runs_on_a_node_is_said_there(ringrun: Ringrun, script: Script, pids: Pids, start: Start) -> None:
    """Whoever has the launcher's end, and the key, can say which rank a node's own program is, and nothing more."""
    (ringrun.directory / "evil.py").write_text(
        "import dataclasses, sys\nfrom ringcore.launcher.elastic import nodes\n"
        "make = nodes.NodesSupervisor._job_at\n"
        "def job_at(self, number):\n"
        "    job = make(self, number)\n"
        "    environ = {**job.environ, 'PYTHONSTARTUP': 'x', 'LD_PRELOAD': 'x', 'RINGCORE_OPENSSL_LIBRARY': 'x'}\n"
        "    return dataclasses.replace(job, argv=('touch', 'evil'), cwd='/', environ=environ,\n"
        "                               drain_when=('touch', 'evil'))\n"
        "nodes.NodesSupervisor._job_at = job_at\n"
        "from ringcore.launcher.main import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    start(0, *LAUNCHER, program=[sys.executable, "evil.py"])
    name = script(
        "print([os.getcwd()] + [n for n in ('PYTHONSTARTUP', 'LD_PRELOAD', 'RINGCORE_OPENSSL_LIBRARY') "
        "if n in os.environ])\nimport ringcore; ringcore.init(); print(ringcore.size())"
    )
    told_so = start(1, *node(name))
    said, stderr = told_so.communicate(timeout=60)
    assert told_so.returncode == 0, stderr
    assert said == f"[0]<stdout> {[str(ringrun.directory)]}\n[0]<stdout> 1\n"
    assert not (ringrun.directory / "evil").exists()
