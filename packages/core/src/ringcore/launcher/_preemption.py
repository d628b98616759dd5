"""Asks a command of the user's, now and then, whether the cloud is about to take this host away."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence

from ringcore.launcher._loop import Loop
from ringcore.launcher._repeated import RepeatedCommand

# Clouds tell half a minute to two minutes before.
_PERIOD_S = 5.0


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
        self._program = argv[0]
        self._on_notice = on_notice
        self._on_problem = on_problem
        # A question about a notice that is not there fails, again and again: that is nothing to show.
        self._command = RepeatedCommand(
            loop, argv, self._take, self._tell, period_s=_PERIOD_S, environ=environ, cwd=cwd,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self) -> None:
        """Run the command now, and again and again."""
        self._command.run()

    def close(self) -> None:
        """Ask no more."""
        self._command.close()

    def _take(self, code: int, _said: bytes) -> str:
        if code == 0:
            self.close()
            self._on_notice()
        return f"was killed by signal {-code}" if code < 0 else ""

    def _tell(self, problem: str) -> None:
        self._on_problem(f"--drain-when: {self._program} {problem}; nobody notices when this host is to go")
