"""Asks a script of the user's, once a second, which hosts there are.

The script is run as it is: what it prints is compared with what a host's name may be, and comes near no shell.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Callable

from ringcore.launcher import _hosts, _process
from ringcore.launcher._hosts import Host, HostError
from ringcore.launcher._loop import Loop, Timer

PERIOD_S = 1.0
_LIMIT_S = 10.0
_MOST_BYTES = 1 << 20
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
        on_problem: Callable[[str], None], period_s: float = PERIOD_S, limit_s: float = _LIMIT_S,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._argv = argv_of(command)
        self._slots = slots
        self._on_hosts = on_hosts
        self._on_problem = on_problem
        self._period_s = period_s
        self._limit_s = limit_s
        self._hosts: list[Host] | None = None
        self._problem = ""
        self._popen: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._timer: Timer | None = None
        self._late: Timer | None = None
        self._closed = False

    def ask(self) -> None:
        """Run the script now, and again and again."""
        try:
            self._popen = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=_process.die_with_parent(),
            )
        except OSError as error:
            self._end(f"cannot be run: {error.strerror}")
            return
        assert self._popen.stdout is not None
        os.set_blocking(self._popen.stdout.fileno(), False)
        self._loop.on_readable(self._popen.stdout.fileno(), self._read)
        self._late = self._loop.call_later(self._limit_s, self._on_late)

    def close(self) -> None:
        """Ask no more."""
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
        if data and len(self._said) <= _MOST_BYTES:
            return
        code, said = self._finish(), self._said
        if code != 0:
            how = f"failed with exit code {code}" if code > 0 else f"was killed by signal {-code}"
            self._end(f"{how}; what it wrote to standard error is above")
            return
        try:
            hosts = parse(said, self._slots)
        except HostError as error:
            self._end(str(error))
            return
        self._end("")
        if hosts != self._hosts:
            self._hosts = hosts
            self._on_hosts(hosts)

    def _on_late(self) -> None:
        self._finish()
        self._end(f"did not end within {self._limit_s:g} s")

    def _finish(self) -> int:
        """Ends the script if it still runs; returns its exit code."""
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

    def _end(self, problem: str) -> None:
        self._said = b""
        if problem and problem != self._problem:
            kept = "" if self._hosts is None else "; the job goes on with the hosts that it named before"
            self._on_problem(f"the host discovery script {self._argv[0]} {problem}{kept}")
        self._problem = problem
        if not self._closed:
            self._timer = self._loop.call_later(self._period_s, self.ask)


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
    if len(said) > _MOST_BYTES:
        raise HostError(f"printed more than {_MOST_BYTES} bytes")
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
