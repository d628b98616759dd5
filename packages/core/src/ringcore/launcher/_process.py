"""One rank's process: started in a session of its own, and dead at the latest when its parent is."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


class StartError(Exception):
    """A rank's process could not be started."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Child(Protocol):
    """A started process as subprocess.Popen has it."""

    pid: int
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def wait(self) -> int:
        """Wait until it ends; minus the signal's number if one has ended it."""

    def kill(self) -> None:
        """End it."""


@dataclasses.dataclass
class Process:
    """A running process with its output pipes; the leader of a session and so of a process group."""

    popen: Child
    pidfd: int
    stdout_fd: int
    stderr_fd: int

    @property
    def group(self) -> int:
        """Number of the process group."""
        return self.popen.pid

    def signal_group(self, number: int) -> bool:
        """Send a signal to the process and to all that it started and that did not leave its group.

        Returns:
            Whether anyone was there.
        """
        try:
            os.killpg(self.group, number)
        except ProcessLookupError:
            return False
        return True

    def reap_group(self) -> None:
        """Take note of those of the group that have ended, once the process itself is known to have.

        They are children of this process where it is the first one of a container, and there until it asks.
        """
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.group, os.WNOHANG)[0]:
                pass

    def signal_leader(self, number: int) -> None:
        """Send a signal to the process alone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)


def die_with_parent() -> Callable[[], None]:
    """Make the function that a new process calls before exec, so that the kernel kills it with its parent."""
    parent = os.getpid()

    def arm() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died before the call above; then no signal will ever come.
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)

    return arm


def start(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: str,
    stdin: int,
    inherit: Sequence[int] = (),
) -> Process:
    """Start a process with pipes for its output.

    Args:
        argv: Program and arguments.
        environ: The whole environment.
        cwd: Working directory.
        stdin: Descriptor to read from, or `subprocess.DEVNULL`.
        inherit: Descriptors that stay open under the same numbers.

    Returns:
        The process.

    Raises:
        StartError: There is no such program or directory, or it may not be run.
    """
    try:
        popen = subprocess.Popen(
            argv,
            env=environ,
            cwd=cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=inherit,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
    except FileNotFoundError as error:
        if error.filename == cwd and not os.path.isdir(cwd):
            raise StartError(f"there is no directory {cwd}: name one with --workdir", 126) from None
        raise StartError(f"there is no program {argv[0]!r}", 127) from None
    except OSError as error:
        raise StartError(f"cannot run {argv[0]!r}: {error.strerror}", 126) from None
    return process_of(popen)


def process_of(popen: Child) -> Process:
    """A process whose output is read from pipes."""
    assert popen.stdout is not None and popen.stderr is not None
    for pipe in (popen.stdout, popen.stderr):
        os.set_blocking(pipe.fileno(), False)
    return Process(popen, _pidfd(popen), popen.stdout.fileno(), popen.stderr.fileno())


def _pidfd(popen: Child) -> int:
    try:
        return os.pidfd_open(popen.pid)
    except OSError as error:
        popen.kill()
        popen.wait()
        raise StartError(f"pidfd_open: {error.strerror}; Linux 5.3 or newer is needed", 1) from None
