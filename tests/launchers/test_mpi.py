"""ringcore over MPI: beside mpi4py, on its communicators, and when a rank is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import mpis
from support.mpis import ALL, PACKAGES, installed, one_in_each_run, only_packages
from support.namespaces import environ_with_ssh, namespaces
from support.processes import RINGRUN, clean_environ
from support.rank import caught

OVER_MPI = {"RINGCORE_TRANSPORT": "mpi"}


def with_own_shm(command: list[str]) -> list[str]:
    """MPI leaves files in /dev/shm when it is not finalised."""
    mount = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh", *command]


def train_beside_mpi4py() -> dict:
    from mpi4py import MPI

    def transports() -> list[str]:
        return sorted(set(ringcore.job.state.context().runtime.transports()))

    def sums(steps: int, name: str) -> bool:
        """Small ones, which go with their announcement, and larger ones, in which plans and MPI's own take turns."""
        rank, size = ringcore.rank(), ringcore.size()
        right = True
        for step in range(steps):
            for count in (10, 40_000):
                total = ringcore.allreduce(
                    np.full(count, rank + step, np.float32), op=ringcore.Sum, name=f"{name}{count}"
                )
                right = right and bool((total == size * (size - 1) / 2 + size * step).all())
        return right

    def disturb(comm: MPI.Comm, wrong: list, enough: threading.Event) -> None:
        """A collective of mpi4py after the other; all ranks stop after the same one."""
        value = np.zeros(1000)
        while value[-1] < comm.size:
            value[:] = comm.rank
            value[-1] = enough.is_set()
            request = comm.Iallreduce(MPI.IN_PLACE, value)
            while not request.Test():  # a blocking one spins, and there are more threads than cores
                time.sleep(0.0005)
            if value[0] != comm.size * (comm.size - 1) / 2:
                wrong.append(value[0])

    world = MPI.COMM_WORLD
    ringcore.init(world)
    ringcore.init(world)  # does nothing
    wrong: list = []
    enough = threading.Event()
    thread = threading.Thread(target=disturb, args=(world.Dup(), wrong, enough))
    thread.start()
    outcome = {"rank": ringcore.rank() == world.rank, "size": ringcore.size() == world.size, "sums": sums(10, "world")}
    enough.set()
    thread.join()
    outcome |= {"mpi4py": not wrong, "transports": transports()}
    ringcore.shutdown()

    # The order of a sub-communicator is its own.
    half = world.Split(world.rank % 2, -world.rank)
    ringcore.init(half)
    outcome["half"] = (ringcore.rank(), ringcore.size()) == (half.rank, half.size) and sums(3, "half")
    ringcore.shutdown()
    os.environ["RINGCORE_TRANSPORT"] = "auto"  # inside a host: our shared memory
    ringcore.init(world)
    outcome |= {"again": sums(3, "again"), "inside": transports()}
    ringcore.shutdown()
    outcome["finalized"] = MPI.Is_finalized()
    world.Barrier()
    outcome["list"] = caught(ringcore.init, [0, 1])["message"]
    return outcome


# One MPI trains in each run, and another one refuses and is lost.
@pytest.mark.parametrize("name", one_in_each_run("Open MPI"))
def test_trains_beside_mpi4py(tmp_path: Path, name: str) -> None:
    for outcome in installed(name).run(train_beside_mpi4py, 3, tmp_path, env=OVER_MPI, with_mpi4py=True):
        assert "a communicator of mpi4py is needed" in outcome.pop("list")
        assert outcome == {
            "rank": True, "size": True, "sums": True, "mpi4py": True, "transports": ["mpi", "self"], "half": True,
            "again": True, "inside": ["self", "shm"], "finalized": False,
        }  # fmt: skip


def init_as_scripts_for_horovod_do() -> dict:
    from horovod.common.basics import init
    from mpi4py import MPI

    def joined(comm: object) -> list:
        init(comm)
        found = [ringcore.rank(), float(ringcore.allreduce(np.ones(3), op=ringcore.Sum, name="sum")[0])]
        ringcore.shutdown()
        return found

    world = MPI.COMM_WORLD
    return {
        "ranks": joined([2, 0]) if world.rank != 1 else caught(joined, [2, 0])["message"],
        "communicator": joined(world.Split(world.rank == 1, world.rank)),
        "all": joined([0, 1, 2]),
        "wrong": [caught(joined, ranks)["message"] for ranks in ([0, 3], [0, 0], [world])],
    }


@pytest.mark.parametrize("name", one_in_each_run("MPICH", ["Open MPI", "MPICH"]))
def test_what_horovods_init_takes(tmp_path: Path, name: str) -> None:
    packages = ("ringcore", "nanobind_backend", "horovod")
    outcomes = installed(name).run(init_as_scripts_for_horovod_do, 3, tmp_path, with_mpi4py=True, packages=packages)
    assert outcomes[1].pop("ranks") == "init(comm=[2, 0]): rank 1 is none of these; they alone call it"
    assert [outcomes[rank].pop("ranks") for rank in (0, 2)] == [[1, 2.0], [0, 2.0]]
    for rank, outcome in enumerate(outcomes):
        assert all("ranks 0 to 2 were expected, each once" in message for message in outcome.pop("wrong"))
        assert outcome == {"communicator": [[0, 2.0], [0, 1.0], [1, 2.0]][rank], "all": [rank, 3.0]}


ALONE = """
import sys
from mpi4py import MPI
from horovod.common.basics import init
for comm in (MPI.COMM_WORLD, [1, 0], [0, 1]):
    try: print("DONE", init(comm), flush=True)
    except Exception as error: print(type(error).__name__, error, flush=True)
"""


def test_a_communicator_of_a_job_that_mpi_has_not_launched(tmp_path: Path) -> None:
    """MPI believes that each rank is alone."""
    mpi = installed("MPICH")
    (tmp_path / "script.py").write_text(ALONE)
    path = only_packages(["ringcore", "nanobind_backend", "horovod"], tmp_path)
    command = [*RINGRUN, "-np", "2", str(mpi.programs / "python"), str(tmp_path / "script.py")]
    environ = {**clean_environ(), **mpi.environ(), "PYTHONPATH": str(path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    said = sorted(line.partition("> ")[2] for line in done.stdout.splitlines())
    assert said[:2] == ["DONE None"] * 2, done.stdout + done.stderr
    why = "a job of some of the 2 ranks, or of all in another order, takes MPI and mpi4py (ringrun has started this"
    assert all(why in text for text in said[2:4])
    assert all("part = add_process_set([1, 0])" in line for line in said[2:4])
    assert all("ringrun has started 2 ranks, but the communicator has this one alone" in line for line in said[4:])


def init_with_few_threads() -> dict:
    import mpi4py

    mpi4py.rc.thread_level = "single"
    from mpi4py import MPI

    if MPI.Query_thread() != MPI.THREAD_SINGLE:
        return {"type": "InvalidArgument", "message": "MPI_THREAD_SINGLE thread_level = 'multiple'"}  # it gives more
    return caught(ringcore.init, MPI.COMM_WORLD)


@pytest.mark.parametrize("name", one_in_each_run("MPICH"))
def test_too_low_a_thread_level_is_refused(tmp_path: Path, name: str) -> None:
    for outcome in installed(name).run(init_with_few_threads, 2, tmp_path, with_mpi4py=True):
        assert outcome["type"] == "InvalidArgument"
        assert "MPI_THREAD_SINGLE" in outcome["message"]
        assert "thread_level = 'multiple'" in outcome["message"]


def lose_a_rank() -> dict:
    ringcore.init()
    values = np.ones(50_000, np.float32)
    for _ in range(10):
        ringcore.allreduce(values, name="gradient")
    if ringcore.rank() == 1:
        Path("pid").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)  # as a host that hangs; mpiexec ends the others of one that dies
    error = caught(ringcore.allreduce, values, name="gradient")
    ringcore.shutdown()
    again = caught(ringcore.init)
    with open("new.0", "w") as file:
        json.dump([error, again], file)
    os.rename("new.0", "result.0")
    os.kill(int(Path("pid").read_text()), signal.SIGKILL)
    return [error, again]


@pytest.mark.parametrize("name", one_in_each_run("MPICH", ALL))
def test_a_lost_rank_is_an_error_and_no_hang(tmp_path: Path, name: str) -> None:
    env = {**OVER_MPI, "RINGCORE_HEARTBEAT_S": "1"}
    error, again = installed(name).run(lose_a_rank, 2, tmp_path, env=env, fails=True, wrap=with_own_shm)[0]
    assert error["type"] == "PeerLostError"
    assert "rank 1 has sent nothing for" in error["message"]
    assert error["seconds"] < 10
    assert again["type"] == "BootstrapError"
    assert "a rank was lost, or did not take its last messages, while this process used MPI" in again["message"]


def place_and_sum() -> list:
    ringcore.init()
    sums = [float(ringcore.allreduce(np.ones(n), op=ringcore.Sum, name="sum")[-1]) for n in [3] + 12 * [100_000]]
    links = ringcore.job.state.context().runtime.transports()
    return [ringcore.local_rank(), ringcore.local_size(), ringcore.cross_size(), links, sorted(set(sums))]


# What each needs to go to other hosts, and nothing for ringcore.
ON_TWO_HOSTS = {
    "MPICH": ["-launcher", "ssh", "-ppn", "2", "-hosts", "host0,host1"],
    "Open MPI": ["--host", "host0:2,host1:2", "--prtemca", "plm_ssh_agent", "ssh", "-x", "PATH", "-x", "PYTHONPATH"],
}


@pytest.mark.parametrize("name", one_in_each_run("MPICH", ON_TWO_HOSTS))
def test_mpiexec_on_two_hosts_needs_nothing_else(tmp_path: Path, name: str) -> None:
    """The ranks meet through MPI, which also connects the hosts; inside each they share memory."""
    with namespaces(2) as hosts:
        results = installed(name).run(
            place_and_sum,
            4,
            tmp_path,
            options=ON_TWO_HOSTS[name],
            wrap=lambda command: hosts[0].command(command, tmp_path),
            env=environ_with_ssh(hosts[0]),
        )
    assert results == [
        [0, 2, 2, ["self", "shm", "mpi", "mpi"], [4.0]],
        [1, 2, 2, ["shm", "self", "mpi", "mpi"], [4.0]],
        [0, 2, 2, ["mpi", "mpi", "self", "shm"], [4.0]],
        [1, 2, 2, ["mpi", "mpi", "shm", "self"], [4.0]],
    ]


def init_here() -> dict:
    return caught(ringcore.init)


def test_another_mpi_than_the_launcher_is_refused(tmp_path: Path) -> None:
    """Each rank would be alone in it."""
    other = installed("Open MPI").programs.parent / "lib" / "libmpi.so.40"
    env = {**OVER_MPI, "RINGCORE_MPI_LIBRARY": str(other)}
    for outcome in installed("MPICH").run(init_here, 2, tmp_path, env=env, wrap=with_own_shm):
        assert outcome["type"] == "BootstrapError"
        assert "it is not the MPI that launched this job" in outcome["message"]


def test_an_environment_with_other_pins_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installs: list[list[str]] = []
    monkeypatch.setattr(mpis, "FOLDER", tmp_path)
    monkeypatch.setattr(mpis.subprocess, "run", lambda command, **_: installs.append(command))  # takes half a minute
    (tmp_path / "mpich").mkdir()
    for pin in ("mpich==1", "mpich==1", "mpich==2"):
        monkeypatch.setitem(PACKAGES, "MPICH", [pin])
        installed("MPICH")
    assert [command[5] for command in installs if "pip" in command] == ["mpich==1", "mpich==2"]
