"""Random faults on a real training job: on hosts (network namespaces) that ringrun reaches by ssh.

    python tests/chaos/run.py [MINUTES [SEED]]

It must go on after each fault, leave no process behind, and come to the loss curve and the weights, bit by bit, of a
replay that is told only how many ranks each step had. Not a test of CI: it takes as long as it is told to.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.namespaces import Host, environ_with_ssh, namespaces
from support.processes import RINGRUN, clean_environ, eventually, is_alive

RANKS, LEAST = 5, 2
HOSTS = "host0:2,host1:2,host2:1"
# What a job may take to go on after a fault: a host that is cut off is waited for, until its agent has ended its ranks.
_LIMIT_S = 120.0
_TRAIN = Path(__file__).with_name("train.py")


class Chaos:
    """The job, and what is done to it.

    Args:
        hosts: Where its ranks run; the launcher is on the first.
        directory: Of its files.
        seed: Of all choices.
    """

    def __init__(self, hosts: list[Host], directory: Path, seed: int) -> None:
        self._hosts = hosts
        self._directory = directory
        self._choice = random.Random(seed)
        self._job = f"chaos-{os.getpid()}"
        self._environ = environ_with_ssh(hosts[0], clean_environ())
        self._environ |= {"RINGCORE_DETERMINISTIC": "1", "OMP_NUM_THREADS": "1"}
        self.done: collections.Counter[str] = collections.Counter()
        faults = [self._kill, self._kill, self._stop, self._cut, self._drain, self._scale]
        self._faults: list[Callable[[], None]] = faults

    def start(self) -> subprocess.Popen[bytes]:
        """Start the job."""
        words = ["-np", str(RANKS), "--min-np", str(LEAST), "-H", HOSTS, "--rdzv-id", self._job, "--agent-timeout", "3"]
        words += ["--blacklist-cooldown-range", "0.1", "2", "--reset-limit", "100000"]
        words += [sys.executable, str(_TRAIN), "train"]
        with (self._directory / "output").open("wb") as output:
            command = self._hosts[0].command([*RINGRUN, *words], self._directory)
            return subprocess.Popen(command, cwd=self._directory, env=self._environ, stdout=output, stderr=output)

    def steps(self) -> int:
        """How many steps the ranks have made."""
        path = self._directory / "progress"
        return int(path.read_text().split()[0]) if path.exists() else 0

    def processes(self) -> list[int]:
        """Those of the ranks that live."""
        return [pid for pid in (int(path.name[4:]) for path in self._directory.glob("pid.*")) if is_alive(pid)]

    def harm(self, job: subprocess.Popen[bytes]) -> None:
        """Do something to it, and wait until it has gone on."""
        fault = self._choice.choice(self._faults)
        if fault in (self._kill, self._stop) and len(self.processes()) <= LEAST:
            fault = self._scale
        name = fault.__name__.strip("_")
        print(f"{time.strftime('%X')} step {self.steps()}, {len(self.processes())} processes: {name}", flush=True)
        self.done[name] += 1
        fault()
        self.goes_on(job)
        time.sleep(self._choice.uniform(0, 1.5))

    def goes_on(self, job: subprocess.Popen[bytes]) -> None:
        """Wait until the job makes further steps."""
        before = self.steps()
        eventually(lambda: self.steps() >= before + 3 or job.poll() is not None, "the job goes on", _LIMIT_S)
        assert job.poll() is None, f"the job has ended with {job.returncode}"

    def check_left(self) -> None:
        """Nobody is left of the job; who has not ended soon is told about first."""
        with contextlib.suppress(AssertionError):
            eventually(lambda: not self.processes(), "all end", 5.0)
        for pid in self.processes():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                rank = (self._directory / f"pid.{pid}").read_text()
                print(
                    f"still there: process {pid}, which was rank {rank}: {' '.join(status.split()[2:16])}", flush=True
                )
        eventually(lambda: not self.processes(), "no process is left", _LIMIT_S)

    def _kill(self) -> None:
        os.kill(self._choice.choice(self.processes()), signal.SIGKILL)

    def _stop(self) -> None:
        """Somebody sees to it that it ends."""
        os.kill(self._choice.choice(self.processes()), signal.SIGSTOP)

    def _cut(self) -> None:
        """A cable of a host other than the launcher's, for less or for more time than anybody waits."""
        host = self._choice.choice(self._hosts[1:])
        host.set_link(up=False)
        time.sleep(self._choice.choice([0.3, 1.0, 4.0]))
        host.set_link(up=True)

    def _drain(self) -> None:
        self._order("drain", self._job, str(self._choice.randrange(RANKS)))  # It may be none.

    def _scale(self) -> None:
        self._order("scale", self._job, f"={self._choice.randint(LEAST + 1, RANKS)}")

    def _order(self, *words: str) -> None:
        command = self._hosts[0].command([sys.executable, "-m", "ringcore", *words], self._directory)
        subprocess.run(command, env=self._environ, timeout=_LIMIT_S, check=False, capture_output=True)


def replay(directory: Path) -> None:
    """Does the steps again, with ranks that stay, on this machine alone."""
    environ = {**clean_environ(), "RINGCORE_DETERMINISTIC": "1", "OMP_NUM_THREADS": "1"}
    words = ["-np", str(RANKS), sys.executable, str(_TRAIN), "replay"]
    subprocess.run([*RINGRUN, *words], cwd=directory, env=environ, timeout=1800, check=True)


def main(minutes: float, seed: int) -> None:
    """Raises AssertionError where something did not hold."""
    print(f"chaos for {minutes:g} minutes, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ringcore-chaos-") as name, namespaces(3) as hosts:
        directory = Path(name)
        chaos = Chaos(hosts, directory, seed)
        job = chaos.start()
        try:
            chaos.goes_on(job)
            end = time.monotonic() + 60 * minutes
            while time.monotonic() < end:
                chaos.harm(job)
            (directory / "stop").touch()
            assert job.wait(_LIMIT_S) == 0
            chaos.check_left()
        except BaseException:
            print((directory / "output").read_text(errors="replace")[-20_000:])
            raise
        finally:
            job.kill()
            for pid in chaos.processes():
                os.kill(pid, signal.SIGKILL)
        replay(directory)
        told, again = (json.loads((directory / file).read_text()) for file in ("result", "replayed"))
        changes = sum(a != b for a, b in zip(told["sizes"], told["sizes"][1:], strict=False))
        print(f"{len(told['sizes'])} steps, {changes} changes of size, faults: {dict(chaos.done)}")
        assert told == again, f"the replay differs: {told} {again}"
        print("the loss curve and the weights are those of the replay, bit by bit")


if __name__ == "__main__":
    main(float((sys.argv[1:] or ["5"])[0]), int((sys.argv[2:] or [str(time.time_ns() % 1_000_000)])[0]))
