"""Ranks that ringrun started meet at its rendezvous and connect: on one host, on two, and under two launchers."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable

import pytest
from support.namespaces import environ_with_ssh, namespaces
from support.processes import Ringrun

Script = Callable[..., str]

MEET = """
from ringcore.environment.placement import find_placement
from ringcore.environment.settings import Settings
from ringcore.bootstrap import connect
def segment():
    fd = os.memfd_create("segment")
    os.ftruncate(fd, 4096)
    return fd
mesh = connect(find_placement(os.environ), Settings.from_environ(os.environ), create_segment=segment)
print(mesh.rank, mesh.size, mesh.host_of, [(p.rank, p.transport) for p in mesh.peers], mesh.local_rank, mesh.cross_rank)
with open(f"job.{rank}", "w") as file: file.write(os.environ["RINGCORE_JOB_ID"])
"""


def lines_of(stdout: str) -> list[str]:
    return sorted(line.partition("> ")[2] for line in stdout.splitlines())


def test_on_one_host(ringrun: Ringrun, script: Script) -> None:
    done = ringrun("-np", "3", script(MEET))
    assert done.returncode == 0, done.stderr
    assert lines_of(done.stdout) == [
        "0 3 [0, 0, 0] [(1, 'shm'), (2, 'shm')] 0 0",
        "1 3 [0, 0, 0] [(0, 'shm'), (2, 'shm')] 1 0",
        "2 3 [0, 0, 0] [(0, 'shm'), (1, 'shm')] 2 0",
    ]


def test_alone(ringrun: Ringrun, script: Script) -> None:
    assert lines_of(ringrun("-np", "1", script(MEET)).stdout) == ["0 1 [0] [] 0 0"]


@pytest.mark.parametrize("first", ["the one that ends", "those that wait"])
def test_nobody_waits_for_a_rank_that_has_ended(ringrun: Ringrun, script: Script, first: str) -> None:
    own = """
if rank == 1:
    if FIRST == "those that wait":
        while not os.path.exists("pid.0"): time.sleep(0.01)
    sys.exit(0)
if FIRST == "the one that ends":
    while not os.path.exists("pid.1"): time.sleep(0.01)
    pid = int(open("pid.1").read())
    while os.path.exists(f"/proc/{pid}"): time.sleep(0.01)
"""
    done = ringrun("-np", "3", script(f"FIRST = {first!r}\nwrite_pid(rank)\n{own}{MEET}"))
    assert done.returncode == 1
    assert "rank 1 has ended with exit status 0 before calling init(), while others wait there for all." in done.stderr
    assert "did not come within" not in done.stderr


def test_a_rank_that_is_done_may_end_before_the_others(ringrun: Ringrun, script: Script) -> None:
    text = MEET + "if rank:\n    while not os.path.exists('job.0'): time.sleep(0.01)\n"
    done = ringrun("-np", "3", script(text))
    assert done.returncode == 0, done.stderr
    assert ringrun("-np", "3", script("if rank: time.sleep(0.01)")).stderr == "", "they never meet"


def test_on_two_hosts_over_ssh_and_under_two_launchers(ringrun: Ringrun, script: Script) -> None:
    expected = [
        "0 3 [0, 1, 1] [(1, 'tcp'), (2, 'tcp')] 0 0",
        "1 3 [0, 1, 1] [(0, 'tcp'), (2, 'shm')] 0 1",
        "2 3 [0, 1, 1] [(0, 'tcp'), (1, 'shm')] 1 0",
    ]
    name = script(MEET)
    with namespaces(2) as hosts:
        ringrun.environ = environ_with_ssh(hosts[0], ringrun.environ)
        here = [host.command([], ringrun.directory) for host in hosts]
        done = ringrun("-H", "host0:1,host1:2", name, prefix=here[0])
        assert done.returncode == 0, done.stderr
        assert lines_of(done.stdout) == expected
        key = ringrun.directory / "job.key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        words = ["--nnodes=2", "--nproc_per_node=2", "--master_addr=host0", "--key-file=job.key", name]
        stranger = ringrun.started("--node_rank=1", "--rdzv-id=other", *words, prefix=here[1])
        with ringrun.started("--node_rank=0", *words, prefix=here[0]) as first, stranger as refused:
            # Whichever of them comes first.
            assert re.search("and rank [23] is of job 'other'", refused.communicate(timeout=300)[1])
            assert refused.returncode != 0
            done = ringrun("--node_rank=1", *words, prefix=here[1])
            stdout, stderr = first.communicate(timeout=300)
        assert (done.returncode, first.returncode) == (0, 0), done.stderr + stderr
        assert [line[:19] for line in lines_of(done.stdout + stdout)] == [
            f"{rank} 4 [0, 0, 1, 1] [(" for rank in range(4)
        ]
        assert len({(ringrun.directory / f"job.{rank}").read_text() for rank in range(4)}) == 1


def test_a_rendezvous_port_in_use_is_an_error_that_names_it(ringrun: Ringrun) -> None:
    key = ringrun.directory / "job.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        done = ringrun(*words, "--key-file", "job.key", "true")
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr and "Traceback" not in done.stderr
