"""Real processes in tests: running ringrun, waiting for what must happen, finding what is left alive."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RINGRUN = [sys.executable, "-m", "ringcore.launcher.main"]
# What should end is given this long: only what hangs is to reach it, not what shares a slow machine with other tests.
LIMIT_S = 300.0
# Variables of a launcher that happens to run these tests, and what changes how output looks.
_FOREIGN = ("RINGCORE_", "PET_", "TORCHELASTIC_", "OMPI_", "PMI", "SLURM_", "HOROVOD_")
# All TCP is encrypted, where the tests do not say otherwise: `nox -s encrypted` asks for it.
ENCRYPTED = os.environ.get("RINGCORE_TEST_ENCRYPTION") == "on"
_UNSET = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "NO_COLOR", "TERM")

# For the start of scripts: leaves the process's number where `Pids` looks, whole or not at all.
WRITE_PID = """
import os
def write_pid(name):
    with open(f"new.{name}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"new.{name}", f"pid.{name}")
"""


def clean_environ() -> dict[str, str]:
    """This process's environment without what other launchers put there."""
    cleaned = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN) and k not in _UNSET}
    return cleaned | ({"RINGCORE_ENCRYPTION": "on"} if ENCRYPTED else {})


def eventually(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait until something is so; fail at the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def descendants(pid: int) -> set[int]:
    """A process and all that come from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has ended.
            parent = int(Path(entry, "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = {pid}
    left = [pid]
    while left:
        new = children.get(left.pop(), [])
        found.update(new)
        left += new
    return found


class Pids:
    """The processes that have left their numbers in a directory by `write_pid`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def wait(self, count: int) -> dict[str, int]:
        """Wait until so many have started; returns name -> number."""
        eventually(lambda: len(self.read()) >= count, f"{count} processes have started")
        return self.read()

    def read(self) -> dict[str, int]:
        return {path.name[4:]: int(path.read_text()) for path in self._directory.glob("pid.*")}

    def kill(self) -> None:
        for pid in filter(is_alive, self.read().values()):
            os.kill(pid, signal.SIGKILL)


class Ringrun:
    """Runs ringrun in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environ = clean_environ()

    def __call__(self, *words: str, **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run it to its end; `prefix` words come before it."""
        prefix = options.pop("prefix", [])
        defaults = {"timeout": LIMIT_S, "text": True, "stdin": subprocess.DEVNULL, **self._place()}
        return subprocess.run([*prefix, *RINGRUN, *words], capture_output=True, check=False, **{**defaults, **options})

    @contextlib.contextmanager
    def started(self, *words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """Start it, and kill it at the end of the block."""
        prefix = options.pop("prefix", [])
        defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **self._place()}
        with subprocess.Popen([*prefix, *RINGRUN, *words], text=True, **{**defaults, **options}) as process:
            try:
                yield process
            finally:
                process.kill()

    def _place(self) -> dict[str, Any]:
        return {"cwd": self.directory, "env": self.environ}
