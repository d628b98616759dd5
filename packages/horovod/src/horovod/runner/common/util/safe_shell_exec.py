"""Commands whose output goes to Python's own streams, and which leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO, TextIO

__all__ = ["execute"]

_GRACE_S = 5.0


def execute(
    command: str, env: Mapping[str, str] | None = None, stdout: TextIO | None = None, stderr: TextIO | None = None
) -> int:
    """Run a command of the shell to its end. When this call is interrupted, all that it has started is ended.

    Args:
        command: For `/bin/sh`.
        env: Its environment; None: this process's.
        stdout: Where its output goes; None: `sys.stdout`, which a notebook shows.
        stderr: The same for its errors.

    Returns:
        Its exit code; 128 + n if signal n has ended it.
    """
    shell = subprocess.Popen(
        ["/bin/sh", "-c", command], env=env, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    ways = ((shell.stdout, stdout or sys.stdout), (shell.stderr, stderr or sys.stderr))
    threads = [threading.Thread(target=_forward, args=way, daemon=True) for way in ways]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        code = shell.wait()
    except BaseException:
        _end(shell)
        raise
    return code if code >= 0 else 128 - code


def _forward(source: IO[str], target: TextIO) -> None:
    with source:
        for line in source:
            target.write(line)
            target.flush()


def _end(shell: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            shell.wait(_GRACE_S)
        os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()
