"""A rank of an elastic job and its launcher: who is in the job, who comes and who goes.

Both write lines of JSON to a socket that the rank has inherited. The launcher decides on every membership, an epoch
each: a rank says that it is ready, and is told its place when all that are left are ready.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ringcore._errors import BootstrapError
from ringcore.environment.placement import Placement

VARIABLE = "RINGCORE_LAUNCHER_FD"
_READ_BYTES = 1 << 16
# The launcher sees at once that a process has ended; its word of it is on the way for so long at most.
_NEWS_LIMIT_S = 2.0


@dataclass(frozen=True)
class News:
    """What has happened since the epoch began.

    Attributes:
        comes: A process is ready to become a rank.
        goes: A rank has ended, or has to.
        leaves: This process has been told to end.
    """

    comes: bool = False
    goes: bool = False
    leaves: bool = False

    def __bool__(self) -> bool:
        return self.comes or self.goes or self.leaves


class Membership:
    """This process's line to its launcher.

    Args:
        fd: The inherited socket.
    """

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._received = b""
        self._comes = self._goes = self._leaves = False
        self._dealt: dict[str, Any] | None = None
        self._waits = False
        self.intact = False  # This process's state is that of a commit that all ranks have made.
        self.lost: int | None = None  # The rank of this epoch that this process lost.
        self.must_sync = True  # As dealt: somebody's is not.
        self._obey_termination()

    def meet(self) -> Placement:
        """Be ready for the next epoch, and wait for this process's place in it.

        Raises:
            SystemExit: There is no place for it any more, or it was told to end.
        """
        if self._leaves:
            self.leave()
        self._dealt = None
        self._say({"ready": True, "intact": self.intact, "lost": self.lost})
        self._waits = True
        try:
            while self._dealt is None:
                self._hear(None)
        finally:
            self._waits = False
        dealt: dict[str, Any] = self._dealt
        self.must_sync = dealt.pop("sync")
        self.intact, self.lost = False, None
        return Placement(**dealt, source="ringrun")

    def news(self) -> News:
        """What the launcher, or a signal, has told since the epoch began."""
        self._hear(0.0)
        return News(self._comes, self._goes, self._leaves)

    def overtaken(self) -> bool:
        """Whether a rank of this epoch has ended or another has come, so that ranks which cannot meet will again."""
        deadline = time.monotonic() + _NEWS_LIMIT_S
        while not self.news() and time.monotonic() < deadline:
            self._hear(deadline - time.monotonic())
        return bool(self.news())

    def leave(self) -> None:
        """Tell the launcher that this process ends, and that nobody is to come in its place.

        Raises:
            SystemExit: Always.
        """
        self._say({"leaves": True})
        sys.exit(0)

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise BootstrapError(f"the launcher of this elastic job has gone: {error.strerror}") from error

    def _hear(self, limit_s: float | None) -> None:
        """Takes what has come, and waits for it up to a limit."""
        if limit_s is not None and not select.select([self._socket], [], [], max(0.0, limit_s))[0]:
            return
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise BootstrapError("the launcher of this elastic job has gone")
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "dealt" in message:
            self._dealt = message["dealt"]
            self._comes = self._goes = False  # All that was told before is part of it.
        self._comes |= message.get("comes", False)
        self._goes |= message.get("goes", False)
        self._leaves |= message.get("drain", False)
        if message.get("dismissed"):
            self.leave()

    def _obey_termination(self) -> None:
        """Let SIGTERM end this process where that harms nobody: at its next commit. A second one ends it at once."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        own = os.getpid()

        def leave_soon(number: int, _frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_DFL)
            if os.getpid() != own:  # A forked child, which has no commits.
                os.kill(os.getpid(), number)
            self._leaves = True
            if self._waits:
                self.leave()

        signal.signal(signal.SIGTERM, leave_soon)


@functools.cache
def membership() -> Membership | None:
    """That of this process, if its launcher runs an elastic job."""
    text = os.environ.pop(VARIABLE, None)  # It means nothing to what this process starts.
    if not text:
        return None
    with contextlib.suppress(ValueError, OSError):
        return Membership(int(text))
    raise BootstrapError(
        f"{VARIABLE} is {text!r}, which is no open descriptor: a program between ringrun and this one has closed it. "
        "Start ranks of an elastic job without such a program"
    )
