"""The launcher's end of the connection to the agent of another host."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ringcore.launcher import _process, _watching
from ringcore.launcher._frames import FramePipe, Kind, ProtocolError, Seals, hold_bits, table_of
from ringcore.launcher._job import Events, HostJob, RankExit
from ringcore.launcher._loop import Loop, Timer

_PING_S = 1.0
# ssh gives a silent connection up after this many times this many seconds.
_ALIVE_INTERVAL_S, _ALIVE_COUNT = 2, 3
_STDERR_BYTES = 4096
# ssh ends at once when it is told to.
_END_LIMIT_S = 2.0


class RemoteEvents(Events, Protocol):
    """What a remote host can tell beyond what its agent tells."""

    def on_hello(self, hello: dict[str, Any]) -> None:
        """The agent runs, and waits for its job."""

    def on_lost(self, reason: str, code: int) -> None:
        """The host cannot be reached, or could not start the job."""


def ssh_argv(
    host: str,
    *,
    port: int | None,
    identity_file: str | None,
    connect_timeout_s: float,
    python: str,
    python_path: str | None,
) -> list[str]:
    """Make the command that starts an agent on another host.

    The far shell sees a fixed line: the interpreter and, if there is one, PYTHONPATH, both quoted. The job, its
    environment and its key go over standard input.

    Args:
        host: Name of the host, checked before.
        port: Of its sshd; `None` leaves it to ssh's configuration.
        identity_file: Private key; `None` leaves it to ssh's configuration.
        connect_timeout_s: ssh gives up after so long.
        python: Interpreter on the host.
        python_path: PYTHONPATH for it.
    """
    argv = ["ssh", "-T", "-o", "BatchMode=yes"]
    argv += ["-o", f"ConnectTimeout={max(1, round(connect_timeout_s))}"]
    argv += ["-o", f"ServerAliveInterval={_ALIVE_INTERVAL_S}"]
    argv += ["-o", f"ServerAliveCountMax={_ALIVE_COUNT}"]
    if port is not None:
        argv += ["-p", str(port)]
    if identity_file is not None:
        argv += ["-i", identity_file]
    command = f"{shlex.quote(python)} -m ringcore.launcher.agent"
    if python_path:
        command = f"env PYTHONPATH={shlex.quote(python_path)} {command}"
    return [*argv, "--", host, f"exec {command}"]


class FarHost:
    """The agent of another host, whatever connects it to the launcher."""

    stays = False  # It is done with its first job; else it takes one after the other.

    def __init__(self, loop: Loop, name: str, events: RemoteEvents, silence_limit_s: float) -> None:
        """Make a host that is not connected yet.

        Args:
            loop: Calls back.
            name: The host's, for messages.
            events: Is told what happens.
            silence_limit_s: The agent ends its ranks when it hears nothing for so long.
        """
        self._loop = loop
        self._name = name
        self._events = events
        self._ping_s = min(_PING_S, silence_limit_s / 4)
        self._ping: Timer | None = None
        self._ranks: frozenset[int] = frozenset()
        self._pipe: FramePipe | None = None
        self._over = False
        self._questions = 0
        self._asked: dict[int, Callable[[_watching.Answers], None]] = {}

    def start(self, job: HostJob) -> None:
        """Send the job."""
        self._ranks |= {rank_job.rank for rank_job in job.ranks}
        self._send(Kind.JOB, 0, job.to_json())

    def signal(self, number: int) -> None:
        """Send a signal to all ranks there."""
        self._send(Kind.SIGNAL, number)

    def kill(self) -> None:
        """End all ranks there."""
        self._send(Kind.KILL)

    def tell(self, rank: int, data: bytes) -> None:
        """Say something to a rank there."""
        self._send(Kind.WORD, rank, data)

    def hold(self, kinds: frozenset[Kind]) -> None:
        """Leave these streams of the ranks unread: nobody takes what they print."""
        self._send(Kind.HOLD, hold_bits(kinds))

    def ask(self, question: str, done: Callable[[_watching.Answers], None]) -> None:
        """Ask the ranks there, for somebody who looks at the job."""
        self._questions += 1
        self._asked[self._questions] = done
        self._send(Kind.ASK, self._questions, question.encode())

    def close(self) -> None:
        """Cut the connection, upon which the agent ends all that is left."""
        self._over = True
        if self._ping is not None:
            self._ping.cancel()
        if self._pipe is not None:
            self._pipe.close()

    def _connected(self, read_fd: int, write_fd: int, seals: Seals | None = None) -> None:
        self._pipe = FramePipe(
            self._loop,
            read_fd,
            write_fd,
            on_frame=self._on_frame,
            on_close=self._on_close,
            expect_magic=True,
            seals=seals,
        )
        self._send_ping()

    def _send(self, kind: Kind, rank: int = 0, payload: bytes = b"") -> None:
        if self._pipe is not None:
            self._pipe.send(kind, rank, payload)

    def _send_ping(self) -> None:
        self._send(Kind.PING)
        self._ping = self._loop.call_later(self._ping_s, self._send_ping)

    def _on_frame(self, kind: Kind, rank: int, payload: bytes) -> None:
        of_a_rank = kind in (Kind.STDOUT, Kind.STDERR, Kind.RESULT, Kind.WORD, Kind.EXIT)
        if of_a_rank and rank not in self._ranks:
            raise ProtocolError(f"the other end speaks for rank {rank}, which is not its own")
        if kind in (Kind.STDOUT, Kind.STDERR, Kind.RESULT, Kind.WORD):
            self._events.on_output(rank, kind, payload)
        elif kind is Kind.EXIT:
            self._events.on_exit(rank, RankExit.from_json(payload))
        elif kind is Kind.ANSWER:
            if rank in self._asked:
                self._asked.pop(rank)(table_of(payload))
        elif kind is Kind.NOTE:
            self._events.on_note(payload.decode(errors="replace"))
        elif kind is Kind.HELLO:
            self._events.on_hello(table_of(payload, host=str, python=str, port=int, executable=str, cwd=str))
        elif kind is Kind.DONE:
            self._over = not self.stays
            self._events.on_done()
        elif kind is Kind.FAILED:
            failure = table_of(payload, message=str, code=int)
            self._lose(failure["message"], failure["code"])

    def _on_close(self, reason: str) -> None:
        self._lose(reason, 1)

    def _lose(self, reason: str, code: int) -> None:
        if not self._over:
            self._over = True
            self._events.on_lost(f"host {self._name}: {reason}", code)


class RemoteHost(FarHost):
    """A host that ssh leads to."""

    def __init__(
        self, loop: Loop, name: str, argv: Sequence[str], events: RemoteEvents, silence_limit_s: float
    ) -> None:
        """Connect; `events.on_hello` or `events.on_lost` tells how that went.

        Args:
            loop: Calls back.
            name: The host's, for messages.
            argv: The command that starts the agent.
            events: Is told what happens.
            silence_limit_s: The agent ends its ranks when it hears nothing for so long.
        """
        super().__init__(loop, name, events, silence_limit_s)
        self._stderr = b""
        environ = {name: value for name, value in os.environ.items() if name != "RINGCORE_KEY_FD"}
        self._popen = _start_ssh(argv, environ)
        stdin, stdout, stderr = self._popen.stdin, self._popen.stdout, self._popen.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        self._stderr_fd = stderr.fileno()
        os.set_blocking(self._stderr_fd, False)
        loop.on_readable(self._stderr_fd, self._on_stderr)
        self._connected(stdout.fileno(), stdin.fileno())

    def close(self) -> None:
        """Cut the connection, upon which the agent ends all that is left."""
        super().close()
        self._loop.forget(self._stderr_fd)
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        _end(self._popen)

    def _on_close(self, reason: str) -> None:
        self._on_stderr()
        said = self._stderr.decode(errors="replace").strip().splitlines()
        self._lose(f"ssh: {said[-1]}" if said else f"ssh: {reason}", 1)

    def _on_stderr(self) -> None:
        try:
            data = os.read(self._stderr_fd, _STDERR_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.forget(self._stderr_fd)
        self._stderr = (self._stderr + data)[-_STDERR_BYTES:]


def _end(popen: subprocess.Popen[bytes]) -> None:
    """Ends ssh and what it started: a wrapper of the user's may stand in its place, and not listen."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(_END_LIMIT_S)
            return


def _start_ssh(argv: Sequence[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    arm: Callable[[], None] = _process.die_with_parent()
    try:
        return subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=arm,
        )
    except OSError as error:
        raise _process.StartError(
            f"cannot run ssh, which other hosts are reached with: {error.strerror}", 127
        ) from None
