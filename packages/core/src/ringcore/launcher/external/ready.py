"""A rank that is forked before its job is known, and begins with it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from typing import IO, Any, NoReturn

from ringcore._objects import unpickle
from ringcore.environment.hidden import memory_file
from ringcore.launcher import _process, worker

_MOST_DESCRIPTORS = 64


@dataclasses.dataclass(frozen=True)
class Threads:
    """The threads of numpy, whose number is fixed when it is imported.

    Attributes:
        say: Tells the zygote what the job of this rank wants, as OMP_NUM_THREADS has it.
        imported_for: With what it was imported in advance; None: it was not.
    """

    say: int
    imported_for: str | None


class ReadyRank:
    """A process that waits for the command, the environment and the descriptors of a rank.

    The one that is forked does not come back from the constructor: it ends as the rank.

    Args:
        threads: See there.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arm = _process.die_with_parent()
        self.pid = os.fork()
        if self.pid == 0:
            arm()
            os.setsid()
            self._line.close()
            _be_rank(theirs, threads.imported_for)
        theirs.close()

    def start(
        self, argv: Sequence[str], *, environ: Mapping[str, str], cwd: str, stdin: int, inherit: Sequence[int] = ()
    ) -> _process.Process:
        """Let it be this rank; see `_process.start`. It is one rank only."""
        os.write(self._threads.say, environ["OMP_NUM_THREADS"].encode())
        (out, out_write), (err, err_write) = (os.pipe2(os.O_CLOEXEC) for _ in range(2))
        read = os.open(os.devnull, os.O_RDWR) if stdin == subprocess.DEVNULL else os.dup(stdin)
        order = {"argv": list(argv), "environ": dict(environ), "cwd": cwd, "targets": [0, 1, 2, *inherit]}
        fd = memory_file("ringcore-order", pickle.dumps(order))
        # Its word says that it leads a group, which can be killed. One that was killed is found dead by its descriptor.
        with self._line, contextlib.suppress(OSError):
            if self._line.recv(1):
                socket.send_fds(self._line, [b"go"], [fd, read, out_write, err_write, *inherit])
        for own in (fd, read, out_write, err_write):
            os.close(own)
        return _process.process_of(_Forked(self.pid, open(out, "rb", buffering=0), open(err, "rb", buffering=0)))


@dataclasses.dataclass
class _Forked:
    """A child, as subprocess has it."""

    pid: int
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None
    _code: int | None = None

    def wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _be_rank(line: socket.socket, imported_for: str | None) -> NoReturn:
    descriptors: list[int] = []
    with contextlib.suppress(OSError):  # The agent has ended, and may not have read the word.
        line.send(b"\0")
        descriptors = list(socket.recv_fds(line, 16, _MOST_DESCRIPTORS)[1])
    line.close()  # Not by its number only: at the end this would close what has that number then.
    if not descriptors:  # The agent ends without a job.
        os._exit(0)
    with open(descriptors.pop(0), "rb") as file:
        order: dict[str, Any] = unpickle(file.read())
    _keep_only(descriptors, order["targets"])
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["cwd"])
    if order["argv"][1:] != ["-m", worker.__name__] or not _has_the_same_numpy(imported_for):
        os.execv(order["argv"][0], order["argv"])
    sys.argv = [worker.__file__]
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # Python's own does that in every fork.
    sys.exit(worker.main())


def _keep_only(descriptors: Sequence[int], targets: Sequence[int]) -> None:
    """Give descriptors these numbers, in the order of both, and close all others."""
    free = max(*targets, *descriptors) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, free) for fd in descriptors]
    for fd, target in zip(moved, targets, strict=True):
        os.dup2(fd, target)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in targets:
            with contextlib.suppress(OSError):  # The one that was listed with.
                os.close(int(name))


def _has_the_same_numpy(imported_for: str | None) -> bool:
    """Whether the numpy that is imported is the one that this rank would import, with as many threads."""
    numpy = sys.modules.get("numpy")
    if numpy is None or imported_for is None:
        return True
    found = PathFinder.find_spec("numpy", worker.search_path())
    return imported_for == os.environ["OMP_NUM_THREADS"] and found is not None and found.origin == numpy.__file__
