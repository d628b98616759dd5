"""A Slurm of the test's own: its controller on the first host, a node daemon on each.

Needs Debian's slurm-wlm and munge.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.namespaces import Host

_START_LIMIT_S = 30.0
_CONFIGURATION = """
ClusterName=ringcore
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0,requeue_delay=0
MinJobAge=300
KillWait=2
NodeName={nodes} CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A running Slurm; commands are run on its first host."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._host = host
        self._folder = folder

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """With the configuration."""
        return {**environ, "SLURM_CONF": str(self._folder / "slurm.conf")}

    def run(self, argv: Sequence[str], environ: Mapping[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands."""
        return self._host.run(argv, env=self.environ(environ), **options)

    def logs(self) -> str:
        """What the daemons said last."""
        return "\n".join(path.read_text()[-2000:] for path in sorted(self._folder.glob("*.log")))


@contextlib.contextmanager
def slurm(hosts: Sequence[Host], folder: Path, cpus: int = 2) -> Iterator[Slurm]:
    """Start Slurm on these hosts."""
    folder.mkdir(parents=True)
    for name in ("state", *(f"spool.{host.name}" for host in hosts)):
        (folder / name).mkdir()
    nodes = ",".join(host.name for host in hosts)
    configuration = _CONFIGURATION.format(controller=hosts[0].name, folder=folder, nodes=nodes, cpus=cpus)
    (folder / "slurm.conf").write_text(configuration)
    # Not used, but looked for otherwise, and a network namespace has a /sys of its own.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_munge(hosts[0], folder))
        daemons = [hosts[0].command([_find("slurmctld"), "-D"])]
        daemons += [host.command([_find("slurmd"), "-D", "-N", host.name]) for host in hosts]
        for daemon in daemons:
            process = subprocess.Popen(
                daemon, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(_end, process)
        running = Slurm(hosts[0], folder)
        deadline = time.monotonic() + _START_LIMIT_S
        while running.run(["sinfo", "-h", "-o", "%T %D"], environ).stdout.split() != ["idle", str(len(hosts))]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"Slurm does not start:\n{running.logs()}")
            time.sleep(0.05)
        yield running
        running.run(["scancel", "--full", "-u", "root"], environ)


@contextlib.contextmanager
def _munge(host: Host, folder: Path) -> Iterator[None]:
    """Slurm's messages are authenticated by munge, with a key of this test. The hosts share the one daemon's socket."""
    key = folder / "munge.key"
    with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(os.urandom(64))
    words = ["--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}"]
    words += [f"--log-file={folder}/munge.log", f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed"]
    with (folder / "munged.stderr").open("w+") as said:
        process = host.popen([_find("munged"), *words], stdout=subprocess.DEVNULL, stderr=said)
        try:
            deadline = time.monotonic() + _START_LIMIT_S
            while not (folder / "munge.socket").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    raise RuntimeError(f"munged does not start: {said.read().strip()}")
                time.sleep(0.02)
            yield
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _find(program: str) -> str:
    return shutil.which(program) or f"/usr/sbin/{program}"
