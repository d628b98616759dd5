"""Runs a command of the user's again and again, beside whatever else the launcher or an agent does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from ringcore.launcher import _process
from ringcore.launcher._loop import Loop, Timer

LIMIT_S = 10.0
MOST_BYTES = 1 << 20


class RepeatedCommand:
    """A command, by no shell, that is run again some time after it has ended.

    Args:
        loop: Calls back.
        argv: The command.
        on_end: Takes the exit code and what was printed, not much more than `MOST_BYTES` of it, and returns what was
            wrong with them; nothing where all was well. It may close this.
        on_problem: Takes what was wrong, or why the command cannot be run, once for each reason.
        period_s: From the end of one run to the next.
        limit_s: A run that takes longer is ended.
        environ: Its environment; None: that of this process.
        cwd: Its working directory; None: that of this process.
        stderr: Where its errors go; None: where those of this process go.
    """

    def __init__(
        self, loop: Loop, argv: Sequence[str], on_end: Callable[[int, bytes], str], on_problem: Callable[[str], None],
        *, period_s: float, limit_s: float = LIMIT_S, environ: Mapping[str, str] | None = None,
        cwd: str | None = None, stderr: int | None = None,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._argv = argv
        self._on_end = on_end
        self._on_problem = on_problem
        self._period_s = period_s
        self._limit_s = limit_s
        self._environ = environ
        self._cwd = cwd
        self._stderr = stderr
        self._problem = ""
        self._popen: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._timer: Timer | None = None
        self._late: Timer | None = None
        self._closed = False

    def run(self) -> None:
        """Run it now, and again and again."""
        try:
            self._popen = subprocess.Popen(
                self._argv,
                env=self._environ,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
                preexec_fn=_process.die_with_parent(),
            )
        except OSError as error:
            self._conclude(f"cannot be run: {error.strerror}")
            return
        assert self._popen.stdout is not None
        os.set_blocking(self._popen.stdout.fileno(), False)
        self._loop.on_readable(self._popen.stdout.fileno(), self._read)
        self._late = self._loop.call_later(self._limit_s, self._on_late)

    def close(self) -> None:
        """Run it no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._finish()

    def _read(self) -> None:
        assert self._popen is not None and self._popen.stdout is not None
        try:
            data = os.read(self._popen.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        self._said += data
        if data and len(self._said) <= MOST_BYTES:
            return
        code = self._finish()
        self._conclude(self._on_end(code, self._said))

    def _on_late(self) -> None:
        self._finish()
        self._conclude(f"did not end within {self._limit_s:g} s")

    def _finish(self) -> int:
        """Ends the command if it still runs; returns its exit code."""
        popen, self._popen = self._popen, None
        if popen is None or popen.stdout is None:
            return 0
        if self._late is not None:
            self._late.cancel()
        self._loop.forget(popen.stdout.fileno())
        popen.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return popen.wait(0.5 if not self._closed else 0.0)  # Its output has ended, and so will it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
        return popen.wait()

    def _conclude(self, problem: str) -> None:
        self._said = b""
        if problem and problem != self._problem:
            self._on_problem(problem)
        self._problem = problem
        if not self._closed:
            self._timer = self._loop.call_later(self._period_s, self.run)
