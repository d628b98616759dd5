"""How long after a kill the caller has its error."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringcore.launcher.external import RankError


def error_after_kill(run: Callable[[str], Any], victim: Callable[[int], int]) -> float:
    """Seconds.

    Args:
        run: Runs `common.waits` with a folder.
        victim: The process to kill, from the number of rank 0's.
    """
    killed = []

    def kill(path: Path) -> None:
        while not path.exists():
            time.sleep(0.001)
        pid = victim(int(path.read_text().split()[0]))
        time.sleep(0.2)  # So rank 1 is in its allreduce.
        killed.append(time.perf_counter())
        os.kill(pid, signal.SIGKILL)

    with tempfile.TemporaryDirectory() as folder:
        killer = threading.Thread(target=kill, args=[Path(folder, "pid")])
        killer.start()
        try:
            run(folder)
        except RankError:
            taken = time.perf_counter() - killed[0]
        else:
            raise AssertionError("nobody was missed")
        finally:
            killer.join()
    return taken


def parent(pid: int) -> int:
    """The number of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def java_above(pid: int) -> int:
    """The JVM that a rank is below."""
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = parent(pid)
    return pid
