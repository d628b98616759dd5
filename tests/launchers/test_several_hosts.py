"""Jobs on several hosts, each started by one of the launchers that there are; the hosts are network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.mpis import installed, one_in_each_run
from support.namespaces import Host, environ_with_ssh, namespaces
from support.processes import LIMIT_S, RINGRUN, clean_environ, eventually
from support.slurm import Slurm, slurm

PLACE = """
import os, socket
import numpy as np
import ringcore
ringcore.init()
total = ringcore.allreduce(np.full(100_000, ringcore.rank() + 1.0), op=ringcore.Sum, name="total")
assert (total == total[0]).all()
transports = ringcore.job.state.context().runtime.transports()
words = [ringcore.rank(), ringcore.size(), ringcore.local_rank(), socket.gethostname(), total[0], *transports]
os.write(1, (" ".join(["PLACE", *map(str, words)]) + "\\n").encode())
ringcore.shutdown()
"""
ONE_EACH = [
    f"PLACE {rank} 4 0 host{rank} 10.0 {' '.join('self' if peer == rank else 'tls' for peer in range(4))}"
    for rank in range(4)
]
TWO_EACH = [
    "PLACE 0 4 0 host0 10.0 self shm tls tls",
    "PLACE 1 4 1 host0 10.0 shm self tls tls",
    "PLACE 2 4 0 host1 10.0 tls tls self shm",
    "PLACE 3 4 1 host1 10.0 tls tls shm self",
]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with namespaces(4) as made:
        yield made


@pytest.fixture
def environ(hosts: list[Host], tmp_path: Path) -> dict[str, str]:
    """A user's, whose home directory is the same on all hosts and has never seen ringcore."""
    (tmp_path / "home").mkdir()
    return {**environ_with_ssh(hosts[0], clean_environ()), "HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "place.py"
    path.write_text(PLACE)
    return str(path)


@pytest.fixture(scope="module")
def cluster(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(hosts, tmp_path_factory.mktemp("cluster") / "slurm") as running:
        yield running


def places(output: str) -> list[str]:
    return sorted(line[line.index("PLACE") :] for line in output.splitlines() if "PLACE" in line)


def checked(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on_all(hosts: list[Host], commands: list[list[str]], environs: list[dict[str, str]]) -> list[str]:
    """The output of commands that run at the same time, one a host."""
    started = [
        host.popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for host, command, environ in zip(hosts, commands, environs, strict=False)
    ]
    outputs = [process.communicate(timeout=LIMIT_S) for process in started]
    for process, (_, error) in zip(started, outputs, strict=True):
        assert process.returncode == 0, error.decode()
    return [output.decode() for output, _ in outputs]


def test_ringrun_over_ssh(hosts: list[Host], environ: dict[str, str], program: str) -> None:
    for text, expected in (("host0:1,host1:1,host2:1,host3:1", ONE_EACH), ("host0:2,host1:2", TWO_EACH)):
        command = [*RINGRUN, "-H", text, "--network", "10.213.0.0/16", "--network", "10.99.0.0/16", program]
        assert places(checked(hosts[0].run(command, env=environ, timeout=LIMIT_S))) == expected


def test_mpirun_over_ssh(hosts: list[Host], environ: dict[str, str], program: str) -> None:
    names = ",".join(host.name for host in hosts)
    where = {
        "Open MPI": ["--host", names, "-x", "MASTER_ADDR=host0", "-x", "HOME"],
        "MPICH": [
            "-hosts",
            names,
            "-launcher",
            "ssh",
            "-genv",
            "MASTER_ADDR",
            "host0",
            "-genv",
            "MASTER_PORT",
            "29500",
        ],
    }
    for name, words in where.items():
        mpi = installed(name)
        command = [*mpi.launch(4), *words, sys.executable, program]
        path = f"{mpi.programs}:{environ['PATH']}"
        said = checked(hosts[0].run(command, env={**environ, **mpi.environ(), "PATH": path}, timeout=LIMIT_S))
        # Through MPI, or over TCP where this ringcore was built without it.
        assert [line.replace("mpi", "tls") for line in places(said)] == ONE_EACH, name


def test_torchrun_on_each_host(hosts: list[Host], environ: dict[str, str], program: str) -> None:
    words = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=host0", "--master-port=29500"]
    commands = [[sys.executable, "-m", "torch.distributed.run", *words, f"--node-rank={i}", program] for i in range(2)]
    assert places("".join(on_all(hosts, commands, [environ] * 2))) == TWO_EACH


def test_the_plain_variables(hosts: list[Host], environ: dict[str, str], program: str) -> None:
    common = {**environ, "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    environs = [{**common, "MASTER_ADDR": "host0", "MASTER_PORT": "29500", "RANK": str(r)} for r in range(4)]
    assert places("".join(on_all(hosts, [[sys.executable, program]] * 4, environs))) == ONE_EACH
    # The key that rank 0 has made is this user's alone, and is taken again.
    key = Path(environ["HOME"], ".ringcore", "key")
    before = key.read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600 and len(before) == 32
    on_all(hosts, [[sys.executable, program]] * 4, environs)
    assert key.read_bytes() == before
    assert os.listdir(key.parent) == ["key"]


def test_too_little_is_told(hosts: list[Host], environ: dict[str, str], program: str) -> None:
    lonely = {**environ, "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    done = hosts[0].run([sys.executable, program], env=lonely)
    assert done.returncode == 1
    assert "set MASTER_ADDR to the host of rank 0 and MASTER_PORT" in done.stderr
    unshared = {**lonely, "MASTER_ADDR": "host0", "MASTER_PORT": "29500", "RINGCORE_START_TIMEOUT_S": "0.3"}
    done = hosts[1].run([sys.executable, program], env=unshared)
    assert "host1 has no key" in done.stderr and "Copy it to this host, or set RINGCORE_KEY_FILE" in done.stderr


def test_srun(cluster: Slurm, environ: dict[str, str], program: str) -> None:
    said = checked(cluster.run(["srun", "-N4", "-n4", sys.executable, program], environ, timeout=LIMIT_S))
    assert places(said) == ONE_EACH
    said = checked(cluster.run(["srun", "-N2", "-n4", "-w", "host0,host1", sys.executable, program], environ))
    assert places(said) == TWO_EACH


WITH_PMI2 = ["srun", "--mpi=pmi2", "-N2", "-n4", "-w", "host0,host1", sys.executable]


@pytest.mark.parametrize("name", one_in_each_run("MPICH", ["MPICH", "Intel MPI"]))
def test_srun_with_pmi2(cluster: Slurm, environ: dict[str, str], program: str, name: str) -> None:
    """Slurm speaks for the launcher of MPICH and Intel MPI."""
    command, mpi = [*WITH_PMI2, program], installed(name)
    between = [line.replace("tls", "mpi") for line in TWO_EACH]
    found = {**environ, **mpi.environ(environ["PATH"]), "LD_LIBRARY_PATH": str(mpi.programs.parent / "lib")}
    assert places(checked(cluster.run(command, found))) == between
    only = [line.replace("shm", "mpi") for line in between]
    assert places(checked(cluster.run(command, {**found, "RINGCORE_TRANSPORT": "mpi"}))) == only


def test_srun_with_pmi2_and_no_mpi(cluster: Slurm, environ: dict[str, str], program: str) -> None:
    """It is TCP, unless MPI was asked for."""
    command = [*WITH_PMI2, program]
    assert places(checked(cluster.run(command, environ))) == TWO_EACH
    asked = cluster.run(command, {**environ, "RINGCORE_TRANSPORT": "mpi"})
    assert asked.returncode != 0 and "no MPI library can be used: the MPI library libmpi.so.12" in asked.stderr


REQUEUED = """
import os, time
import numpy as np
import ringcore
ringcore.init()
one = np.ones(1000, np.float32)
path = f"steps.{ringcore.rank()}"
own = int(open(path).read()) if os.path.exists(path) else 0  # the checkpoint
# The ranks were killed at different moments.
begun = done = int(ringcore.broadcast(np.array([own]), 0, name="begun")[0])
again = bool(os.environ.get("SLURM_RESTART_COUNT"))
while done < 5 or not again:
    ringcore.allreduce(one, op=ringcore.Sum, name="step")
    done += 1
    with open("new." + path, "w") as file: file.write(str(done))
    os.rename("new." + path, path)
    time.sleep(0.01)
print("RESUMED", ringcore.rank(), ringcore.size(), begun > 0, flush=True)
ringcore.shutdown()
"""


def test_a_batch_job_that_is_requeued_goes_on(cluster: Slurm, environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REQUEUED)
    batch = tmp_path / "job.sh"
    batch.write_text(f"#!/bin/sh\n#SBATCH -N2 -n2 --requeue --open-mode=append\nsrun {sys.executable} train.py\n")
    submitted = cluster.run(["sbatch", "--parsable", "-o", "out", str(batch)], environ, cwd=tmp_path)
    job = checked(submitted).strip()
    out = tmp_path / "out"
    eventually(lambda: all((tmp_path / f"steps.{r}").exists() for r in range(2)), "the job has begun", LIMIT_S)
    checked(cluster.run(["scontrol", "requeue", job], environ))
    # Pending is when every node has ended the first run. Left alone Slurm would wait for two minutes now. It must wait
    # a little, because nodes refuse a job whose credential is of the same second as the end of its last run.
    pending = ["squeue", "-h", "-j", job, "-o", "%T"]
    eventually(lambda: cluster.run(pending, environ).stdout.strip() == "PENDING", "the job is pending again", LIMIT_S)
    checked(cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now+2"], environ))
    try:
        eventually(lambda: out.read_text().count("RESUMED") == 2, "the job has run again to its end", LIMIT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{out.read_text()}\n{cluster.logs()}") from None
    assert {"RESUMED 0 2 True", "RESUMED 1 2 True"} <= set(out.read_text().splitlines())


STAYS = """
import os, socket
import numpy as np
import ringcore
from ringcore import elastic

ringcore.init()

@elastic.run
def train(state):
    with open(f"new.{os.getpid()}", "w") as file:
        file.write(str(os.getppid()))
    os.rename(f"new.{os.getpid()}", f"trains.{ringcore.size()}.{socket.gethostname()}.{os.getpid()}")
    while not ringcore.allreduce(np.array([os.path.exists("stop")]), op=ringcore.Min)[0]:
        state.total += float(ringcore.allreduce(np.ones(1), op=ringcore.Average)[0])
        state.step += 1
        state.commit()
    print("ENDED", ringcore.size(), state.step == state.total, flush=True)

train(elastic.ObjectState(step=0, total=0.0))
"""
ELASTIC = """#!/bin/sh
#SBATCH -N2 -n2 --no-kill
node="{ringrun} --nnodes 1:2 --rdzv-endpoint $SLURMD_NODENAME:29400 --key-file job.key train.py"
{ringrun} --nnodes 1:2 -np 2 --listen 29400 --key-file job.key &
launcher=$!
srun -N2 -n2 --kill-on-bad-exit=0 --no-kill $node &
until test -e lost; do sleep 0.1; done
srun -N1 -n1 --overlap -w "$(cat lost)" $node &
wait $launcher
echo "JOB $?"
wait
"""


def test_a_node_of_an_elastic_batch_job_that_is_lost_and_returns(
    cluster: Slurm, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(STAYS)
    with open(os.open(tmp_path / "job.key", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(os.urandom(32))
    (tmp_path / "job.sh").write_text(ELASTIC.format(ringrun=" ".join(RINGRUN)))
    out = tmp_path / "out"

    def trains(size: int) -> dict[str, tuple[str, int]]:
        """By process, its host and its ringrun."""
        found = {path.name.split(".")[3]: path for path in tmp_path.glob(f"trains.{size}.*")}
        return {process: (path.name.split(".")[2], int(path.read_text())) for process, path in found.items()}

    def wait(condition: Callable[[], object], what: str) -> None:
        try:
            eventually(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{out.read_text() if out.exists() else ''}\n{cluster.logs()}") from None

    checked(cluster.run(["sbatch", "--parsable", "-o", "out", "job.sh"], environ, cwd=tmp_path))
    wait(lambda: len(trains(2)) == 2, "both nodes train")
    lost, kept = sorted(trains(2))
    host, ringrun = trains(2)[lost]
    os.kill(ringrun, signal.SIGKILL)
    wait(lambda: list(trains(1)) == [kept], "the other goes on, in its process")
    (tmp_path / "new.lost").write_text(host)
    os.rename(tmp_path / "new.lost", tmp_path / "lost")
    wait(lambda: len(trains(2)) == 3, "the node has returned")
    (tmp_path / "stop").touch()
    wait(lambda: "JOB" in out.read_text(), "the job has ended")
    text = out.read_text()
    assert "JOB 0" in text and text.count("ENDED 2 True") == 2, text
