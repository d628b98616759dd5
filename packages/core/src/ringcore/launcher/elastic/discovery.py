"""Asks a script of the user's, once a second, which hosts there are.

The script is run as it is: what it prints is compared with what a host's name may be, and comes near no shell.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable

from ringcore.launcher import _hosts
from ringcore.launcher._hosts import Host, HostError
from ringcore.launcher._loop import Loop
from ringcore.launcher._repeated import LIMIT_S, MOST_BYTES, RepeatedCommand

PERIOD_S = 1.0
_SHOWN_CHARACTERS = 200


class Discovery:
    """Runs the script, and tells what it said.

    Args:
        loop: Calls back.
        command: The script, and arguments for it.
        slots: Of a host for which the script names no number.
        on_hosts: Takes what the script has named, each time that it is another list than before.
        on_problem: Takes why the script cannot be used, once for each reason; the hosts stay those of before.
        period_s: From the end of one run to the next.
        limit_s: A run that takes longer is ended.
    """

    def __init__(
        self, loop: Loop, command: str, slots: int | None, on_hosts: Callable[[list[Host]], None],
        on_problem: Callable[[str], None], period_s: float = PERIOD_S, limit_s: float = LIMIT_S,
    ) -> None:  # fmt: skip
        argv = argv_of(command)
        self._program = argv[0]
        self._slots = slots
        self._on_hosts = on_hosts
        self._on_problem = on_problem
        self._hosts: list[Host] | None = None
        self._command = RepeatedCommand(loop, argv, self._take, self._tell, period_s=period_s, limit_s=limit_s)

    def ask(self) -> None:
        """Run the script now, and again and again."""
        self._command.run()

    def close(self) -> None:
        """Ask no more."""
        self._command.close()

    def _take(self, code: int, said: bytes) -> str:
        if code != 0:
            how = f"failed with exit code {code}" if code > 0 else f"was killed by signal {-code}"
            return f"{how}; what it wrote to standard error is above"
        try:
            hosts = parse(said, self._slots)
        except HostError as error:
            return str(error)
        if hosts != self._hosts:
            self._hosts = hosts
            self._on_hosts(hosts)
        return ""

    def _tell(self, problem: str) -> None:
        kept = "" if self._hosts is None else "; the job goes on with the hosts that it named before"
        self._on_problem(f"the host discovery script {self._program} {problem}{kept}")


def argv_of(command: str) -> list[str]:
    """The words of a command that no shell reads.

    Raises:
        HostError: There is no such program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise HostError(f"--host-discovery-script {command!r}: {error}") from None
    if not words:
        raise HostError("--host-discovery-script names no program")
    path = words[0]
    if os.path.dirname(path) or os.path.exists(path):
        path = os.path.abspath(path)
        if not os.path.isfile(path):
            raise HostError(f"--host-discovery-script: there is no file {path}")
        if not os.access(path, os.X_OK):
            raise HostError(f"--host-discovery-script: {path} may not be run; chmod +x {path}")
    return [path, *words[1:]]


def parse(said: bytes, slots: int | None) -> list[Host]:
    """Read what a discovery script has printed: a host a line, `NAME` or `NAME:SLOTS`.

    Args:
        said: What it printed.
        slots: Of a host without a number; None: one.

    Raises:
        HostError: A line is no host, or a host occurs twice.
    """
    if len(said) > MOST_BYTES:
        raise HostError(f"printed more than {MOST_BYTES} bytes")
    found: dict[str, Host] = {}
    for line in filter(None, map(str.strip, said.decode(errors="replace").splitlines())):
        try:
            host = _hosts.parse_host(line)
        except HostError:
            raise HostError(
                f"printed {line[:_SHOWN_CHARACTERS]!r}, which is no host; it is to print a host a line, NAME or "
                "NAME:SLOTS, such as node1:4"
            ) from None
        if host.name in found:
            raise HostError(f"printed the host {host.name} twice; give it all its slots in one line")
        found[host.name] = host if ":" in line.rpartition("]")[2] or slots is None else Host(host.name, slots)
    return list(found.values())
