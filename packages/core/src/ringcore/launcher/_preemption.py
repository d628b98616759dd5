"""Asks a command of the user's, now and then, whether the cloud is about to take this host away."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from ringcore.launcher import _process
from ringcore.launcher._loop import Loop, Timer

# Clouds tell half a minute to two minutes before.
_PERIOD_S = 5.0
_LIMIT_S = 10.0


class PreemptionNotice:
    """Runs the command until it succeeds, which is the notice.

    Args:
        loop: Calls back.
        argv: The command, which no shell reads.
        environ: Its environment.
        cwd: Its working directory.
        on_notice: Is called once, when the command has ended with exit code 0. Any other code means "not yet".
        on_problem: Takes why the command says nothing, once for each reason.
    """

    def __init__(
        self, loop: Loop, argv: Sequence[str], environ: Mapping[str, str], cwd: str, on_notice: Callable[[], None],
        on_problem: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._loop = loop
        self._argv = argv
        self._environ = environ
        self._cwd = cwd
        self._on_notice = on_notice
        self._on_problem = on_problem
        self._problem = ""
        self._popen: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._timer: Timer | None = None

    def ask(self) -> None:
        """Run the command now, and again and again."""
        try:
            self._popen = subprocess.Popen(
                self._argv,
                env=self._environ,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # A question about a notice that is not there fails, again and again.
                start_new_session=True,
                preexec_fn=_process.die_with_parent(),
            )
        except OSError as error:
            self._ask_later(f"cannot be run: {error.strerror}")
            return
        self._pidfd = os.pidfd_open(self._popen.pid)
        self._loop.on_readable(self._pidfd, self._on_end)
        self._timer = self._loop.call_later(_LIMIT_S, self._on_late)

    def close(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._popen is not None:
            self._end()

    def _on_end(self) -> None:
        code = self._end()
        if code == 0:
            self._on_notice()
        else:
            self._ask_later(f"was killed by signal {-code}" if code < 0 else "")

    def _on_late(self) -> None:
        self._end()
        self._ask_later(f"did not end within {_LIMIT_S:g} s")

    def _end(self) -> int:
        """Ends the command and what it has started; returns its exit code."""
        popen, self._popen = self._popen, None
        assert popen is not None and self._timer is not None
        self._timer.cancel()
        self._loop.forget(self._pidfd)
        os.close(self._pidfd)
        if popen.poll() is None:
            os.killpg(popen.pid, signal.SIGKILL)
        return popen.wait()

    def _ask_later(self, problem: str) -> None:
        if problem and problem != self._problem:
            self._on_problem(f"--drain-when: {self._argv[0]} {problem}; nobody notices when this host is to go")
        self._problem = problem
        self._timer = self._loop.call_later(_PERIOD_S, self.ask)
