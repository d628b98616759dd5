"""A rank of an elastic job and its launcher: who is in the job, who comes and who goes.

Both write lines of JSON to a socket that the rank has inherited. A rank says that it is ready, and is told its place
when all that are left are ready. Among those who have met so the engine sees to it that the others go on when some are
lost; then the launcher has a vote, which it is asked for here.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from ringcore._errors import BootstrapError, RingcoreError
from ringcore.environment.invitation import Invitation
from ringcore.environment.placement import Placement
from ringcore.environment.straggler import Straggler

if TYPE_CHECKING:
    from ringcore import _native

_log = logging.getLogger("ringcore")
VARIABLE = "RINGCORE_LAUNCHER_FD"
THREAD_NAME = "ringcore-launcher"
_READ_BYTES = 1 << 16
# The launcher sees at once that a process has ended; its word of it is on the way for so long at most.
_NEWS_LIMIT_S = 2.0
_NO_HANDLER = (
    "SIGTERM does not let process %d leave its elastic job in order: %s. Remedy: `ringcore drain JOB RANK`, or call "
    "init() %s"
)
_HAS_OWN = ("the program has a handler of its own, or ignores it", "before that handler is set")
_IN_A_THREAD = ("init() was not called in the main thread", "in the main thread")


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
        self._sending = threading.Lock()
        self._changed = threading.Condition()  # Guards: what the launcher has said, and `_runtime`.
        self._comes = self._goes = self._leaves = False
        self._dismissed = self._gone = False
        self._dealt: dict[str, Any] | None = None
        self._invitation: Invitation | None = None  # Of this process.
        self._invited: list[Invitation] = []  # Others, before there is an engine.
        self._receive: Callable[[Invitation], None] | None = None  # With the runtime.
        self._epoch = 0  # As dealt: engines count on by themselves.
        self._unheard: list[bytes] = []  # Of the witness, before there is an engine.
        self._runtime: _native.Runtime | None = None
        self._waits = False
        self._ends_steps = False  # Its optimizer calls `leave_after_step`.
        self.commits = False  # It runs in `elastic.run`, and leaves at a commit.
        self.intact = False  # This process's state is that of a commit that all ranks have made.
        self.lost: int | None = None  # The rank of this epoch that this process lost.
        self.must_sync = True  # As dealt: somebody's is not.
        self.least = 1  # So many ranks must be there to go on.
        self.evict_slow: float | None = None  # See `Stragglers`; None: nobody looks for one.
        self._obey_termination()
        self._thread = threading.Thread(target=self._listen, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def meet(self) -> Placement | Invitation:
        """Be ready for the next epoch, and wait for this process's place in it, or for being let in by who trains.

        Raises:
            SystemExit: There is no place for it any more, or it was told to end.
        """
        if self._leaves:
            self.leave()
        self._dealt = self._invitation = None
        self._say({"ready": True, "intact": self.intact, "lost": self.lost})
        with self._changed:
            self._waits = True
            try:
                self._changed.wait_for(
                    lambda: self._dealt or self._invitation or self._dismissed or self._leaves or self._gone
                )
            finally:
                self._waits = False
        if self._dismissed or (self._leaves and not (self._dealt or self._invitation)):
            self.leave()
        if self._leaves:  # It was told so together with its place.
            self._leave_now_if_never()
        self._check_launcher()
        if self._dealt is None and self._invitation is not None:
            self.must_sync, self.least = True, self._invitation.least
            self.evict_slow = self._invitation.evict_slow
            self.intact, self.lost = False, None
            return self._invitation
        dealt: dict[str, Any] = self._dealt or {}
        self.must_sync, self.least = dealt.pop("sync"), dealt.pop("least")
        self.evict_slow = dealt.pop("evict_slow")
        self.intact, self.lost = False, None
        return Placement(**dealt, source="ringrun")

    def news(self) -> News:
        """What the launcher, or a signal, has told since the epoch began."""
        self._check_launcher()
        return News(self._comes, self._goes, self._leaves)

    def overtaken(self) -> bool:
        """Whether a rank of this epoch has ended or another has come, so that ranks which cannot meet will again."""
        with self._changed:
            self._changed.wait_for(lambda: self._unheard or self._gone or self.news(), _NEWS_LIMIT_S)
            return bool(self._unheard or self.news())

    def leave(self) -> None:
        """Tell the launcher that this process ends, and that nobody is to come in its place.

        Raises:
            SystemExit: Always.
        """
        self._say({"leaves": True})
        sys.exit(0)

    def leave_after_step(self) -> None:
        """A step has ended, in the program: who was told to leave and makes no commits does so here.

        Nobody has to agree to it: the others find that it has left, and make the next step among themselves.

        Raises:
            SystemExit: This process was told to end.
        """
        self._ends_steps = True
        if self._leaves and not self.commits:
            self.leave()

    def wait_for_the_end(self) -> None:
        """Fewer ranks are left than may go on, and nobody can join them where they are: the launcher ends them.

        Raises:
            SystemExit: This process was told to end.
            BootstrapError: The launcher has gone.
        """
        if self._leaves:
            self.leave()
        self._say({"too_few": True})
        with self._changed:
            self._waits = True
            try:
                self._changed.wait_for(lambda: self._leaves or self._gone)
            finally:
                self._waits = False
        self._check_launcher()
        self.leave()

    def tell_connected(self) -> None:
        """Tell the launcher that this process has met the others of its epoch."""
        self._say({"connected": self._epoch})

    def tell_slow(self, straggler: Straggler) -> None:
        """Tell the launcher that the others wait for this process all the time."""
        self._say({"slow": dataclasses.asdict(straggler)})

    def give_up(self, place: int) -> None:
        """Tell the launcher that who was to join at this place will not."""
        with contextlib.suppress(BootstrapError):
            self._say({"given_up": place})

    def tell_met(self, place: int) -> None:
        """Tell the launcher that this process, which joins, is connected with all whom it was to meet."""
        self._say({"met": place})

    # The launcher as the witness of an engine.

    def attend(self, runtime: _native.Runtime, receive: Callable[[Invitation], None]) -> None:
        """From here on what the witness says is for this engine.

        Args:
            runtime: The engine.
            receive: Connects it with who joins.
        """
        runtime.add_service_thread(self._thread.native_id or 0)
        with self._changed:
            self._runtime = runtime
            self._receive = receive
            while self._invited:
                self._begin_to_receive(runtime, self._invited.pop(0))
            while self._unheard:
                runtime.hear_witness(self._unheard.pop(0))
            if self._gone:
                runtime.lose_witness()

    def part(self) -> None:
        """The engine is no more: this process has left the ranks of its epoch."""
        with self._changed:
            self._runtime = None
        with contextlib.suppress(BootstrapError):
            self._say({"apart": True})

    def ask(self, message: bytes) -> None:
        """Tell the witness what the engine has to say to it."""
        with contextlib.suppress(BootstrapError):  # Who listens notices that, too.
            self._say({"view": base64.b64encode(message).decode(), "epoch": self._epoch})

    def _begin_to_receive(self, runtime: _native.Runtime, invitation: Invitation) -> None:
        """Connects this rank with who joins, beside the program."""
        connect = self._receive
        if invitation.epoch != self._epoch or connect is None:
            return

        def receive() -> None:
            runtime.add_service_thread(threading.get_native_id())
            try:
                connect(invitation)
            except BootstrapError as error:  # Whoever joins sees that itself, and comes again.
                _log.info("this rank has not met who wants to join the job: %s", error)
            except RingcoreError as error:  # Then it is let in nowhere.
                _log.info("this rank has not met who wants to join the job: %s", error)
                with contextlib.suppress(BootstrapError):
                    self._say({"unmet": invitation.place})
            finally:
                with self._changed:
                    runtime.remove_service_thread(threading.get_native_id())

        threading.Thread(target=receive, name=f"{THREAD_NAME}-join", daemon=True).start()

    def _hear_witness(self, said: dict[str, Any]) -> None:
        if said["epoch"] != self._epoch:
            return
        message = base64.b64decode(said["view"])
        if self._runtime is None:
            self._unheard.append(message)
        else:
            self._runtime.hear_witness(message)

    def _say(self, message: dict[str, Any]) -> None:
        try:
            with self._sending:
                self._socket.sendall(_line(message))
        except OSError as error:
            raise BootstrapError(f"the launcher of this elastic job has gone: {error.strerror}") from error

    def _check_launcher(self) -> None:
        if self._gone:
            raise BootstrapError("the launcher of this elastic job has gone")

    def _listen(self) -> None:
        """Takes what comes, on a thread of its own: the witness speaks while the program waits for the engine."""
        received = b""
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except OSError:
                data = b""
            *lines, received = (received + data).split(b"\n")
            with self._changed:
                for line in lines:
                    self._take(json.loads(line))
                if not data:
                    self._gone = True
                    if self._runtime is not None:
                        self._runtime.lose_witness()
                self._changed.notify_all()
            if not data:
                return

    def _take(self, message: dict[str, Any]) -> None:
        if "dealt" in message:
            self._dealt = message["dealt"]
            self._epoch = self._dealt["epoch"]
            self._unheard.clear()
            self._invited.clear()
            self._comes = self._goes = False  # All that was told before is part of it.
        if "join" in message:
            self._invitation = Invitation(**message["join"])
            self._epoch = self._invitation.epoch
            self._unheard.clear()
            self._invited.clear()
            self._comes = self._goes = False
        if "joins" in message:
            invitation = Invitation(**message["joins"])
            if self._runtime is None:
                self._invited.append(invitation)
            else:
                self._begin_to_receive(self._runtime, invitation)
        self._comes |= message.get("comes", False)
        self._goes |= message.get("goes", False)
        if message.get("drain", False):
            self._leaves = True
            self._leave_now_if_never()
        self._dismissed |= message.get("dismissed", False)
        if "view" in message:
            self._hear_witness(message)

    def _obey_termination(self) -> None:
        """Let SIGTERM end this process where that harms nobody. A second one ends it at once."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            _log.warning(_NO_HANDLER, os.getpid(), *(_HAS_OWN if in_main_thread else _IN_A_THREAD))
            return
        own = os.getpid()

        def leave_soon(number: int, _frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_DFL)
            if os.getpid() != own:  # A forked child, which has no commits.
                os.kill(os.getpid(), number)
            self._leaves = True
            if self._waits:
                self.leave()
            self._leave_now_if_never()

        signal.signal(signal.SIGTERM, leave_soon)

    def _leave_now_if_never(self) -> None:
        """End at once where the program comes to no place to leave: the others make the step without this process."""
        if self._waits or self.commits or self._ends_steps:
            return
        if self._sending.acquire(blocking=False):  # A signal may have come while this very thread sent something.
            try:
                with contextlib.suppress(OSError):
                    self._socket.sendall(_line({"leaves": True}))
            finally:
                self._sending.release()
        # A handler of the program's own decides what becomes of it; to ignore the signal is none.
        ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGKILL if ignored else signal.SIGTERM)


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


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
