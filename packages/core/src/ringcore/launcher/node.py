"""A node that brings its ranks to an elastic job: what `ringrun --nnodes MIN:MAX` is where a cluster starts it.

Each slot has a connection to the launcher (`ringrun --listen`), which decides when a process is started in it, and who
is a rank. What is started there is said here alone: by this command line, whatever the launcher sends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from ringcore._errors import BootstrapError
from ringcore._version import __version__
from ringcore.bootstrap.auth import WrongKeyError, pause_before_next
from ringcore.bootstrap.sockets import RanksMissingError
from ringcore.environment import settings as _settings
from ringcore.launcher import _hosts, _layout, _summary
from ringcore.launcher._dialling import dial_launcher, machine
from ringcore.launcher._frames import Kind, ProtocolError, table_of
from ringcore.launcher._guard import Guard
from ringcore.launcher._job import LEAVING, HostJob, RankExit, RankJob
from ringcore.launcher._layout import JobLayout
from ringcore.launcher._loop import Loop
from ringcore.launcher._options import Options
from ringcore.launcher._output import Output
from ringcore.launcher._process import StartError
from ringcore.launcher.agent import FarAgent

if TYPE_CHECKING:
    import socket

# The launcher has gone: whoever started this node may start it again, and the job with it.
_EXIT_ALONE = 1
# For so long the address that the launcher's name had is dialled.
_ATTEMPT_S = 5.0
# What a launcher sends beyond these would end this process by an exception, or be taken for something else.
_MOST_CODE, _MOST_RANK, _MOST_SILENCE_S = 255, (1 << 32) - 1, 1e9
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# All that a launcher decides about a rank: its place, and where and as which job the ranks meet.
_DECIDED = frozenset(_layout.rank_environ(JobLayout(1, 1, ()), _hosts.slots_of([1])[0], "")) | {
    "RINGCORE_JOB_ID", "RINGCORE_RENDEZVOUS", _settings.variable("elastic"), "HOROVOD_ELASTIC", "MASTER_ADDR",
    "MASTER_PORT", "TORCHELASTIC_RUN_ID",
}  # fmt: skip


class OwnNode:
    """The slots of this node, as long as they belong to a job.

    Args:
        loop: Calls back.
        guard: Is told what to end if this process is killed.
        output: Shows what the ranks print.
        options: What this node was asked for.
        layout: How many slots it has, and where the launcher is.
        key: The job's key.
    """

    def __init__(
        self, loop: Loop, guard: Guard, output: Output, options: Options, layout: JobLayout, key: bytes
    ) -> None:
        self._loop = loop
        self._guard = guard
        self._output = output
        self._options = options
        self._layout = layout
        self._key = key
        self._slots: list[_Slot] = []
        self._waits = False  # For the launcher, and has said so.
        self._code: int | None = None  # Known once this node ends.
        self._left_by: int | None = None  # The signal by which its ranks have been asked to leave.

    def run(self, start_timeout_s: float) -> int:
        """Take part in the job to its end, or this node's.

        Args:
            start_timeout_s: The launcher has to answer within so long.

        Returns:
            The exit code: that of the job, or why this node has left it.

        Raises:
            BootstrapError: The launcher does not answer, or has another key.
        """
        signal.signal(signal.SIGTERM, _end_at_once)  # The first process of a container would not hear of it else.
        deadline = time.monotonic() + start_timeout_s
        for number in range(self._layout.size):
            connection, secret = self._dial(number, deadline)
            self._slots.append(_Slot(self, self._loop, self._guard, connection, secret))
        self._loop.on_signals((*_ENDING, signal.SIGUSR1, signal.SIGUSR2), self._on_signal)
        self._output.on_hold = self._hold
        self._output.on_reader_gone = self._on_reader_gone
        for slot in self._slots:
            slot.greet()
        while self._code is None:
            self._loop.run_once()
        for slot in self._slots:
            slot.close()
        if self._left_by is not None:
            self._output.hurry()
            self._output.abandon_soon()
        return self._output.write_out(lambda: self._code or 0, "ringrun: the job has ended well")

    def _dial(self, number: int, deadline: float) -> tuple[socket.socket, bytes]:
        """Connects; its name is looked up again and again, as a launcher's new pod has another address."""
        address = self._layout.rendezvous
        assert address is not None
        while True:
            attempt_by = min(deadline, time.monotonic() + _ATTEMPT_S)
            _layout.await_launcher(address.split(":", 1)[1].rpartition(":")[0], attempt_by - time.monotonic())
            try:
                return dial_launcher(address, self._key, number, attempt_by)
            except WrongKeyError:
                raise
            except BootstrapError as error:  # The launcher's host may be about to start, or its name to have changed.
                pause_s = pause_before_next()
                if time.monotonic() + pause_s <= deadline:
                    if not self._waits:
                        self.say(f"waiting for the launcher of this job at {address}, up to --start-timeout")
                    self._waits = True
                    time.sleep(pause_s)
                elif isinstance(error, RanksMissingError):
                    raise
                else:
                    raise BootstrapError(f"no launcher of this job answers at {address}: {error}") from error

    # What the slots tell.

    def show(self, rank: int, kind: Kind, data: bytes) -> None:
        """A rank wrote something."""
        self._output.feed(rank, kind, data)

    def show_end(self, rank: int, how: RankExit, *, in_order: bool) -> None:
        """A rank has ended: its launcher tells everybody why, and its own node what it said."""
        self._output.end(rank)
        self._output.release(rank)
        if how.code != 0 and not in_order and self._left_by is None:
            self.say(f"rank {rank} here {_summary.how(_summary.Failure(rank, how, '', by_launcher=False))}")

    def say(self, text: str) -> None:
        """Say something to the user."""
        self._output.say(f"ringrun: {text}")

    def note(self, text: str) -> None:
        """Say something to a user who asked for details."""
        if self._options.verbose:
            self.say(text)

    def own_job(self, told: HostJob) -> HostJob:
        """What this node runs where the launcher wants a rank.

        Raises:
            ProtocolError: See `own_job`.
        """
        job = own_job(told, self._options, self._layout, self._key)
        rank = job.ranks[0].rank
        self._output.begin(rank)
        try:
            self._output.create_logs([rank])
        except OSError as error:
            self.say(f"cannot write to --log-dir {self._options.log_dir}: {error.strerror}")
        return job

    def finish(self, code: int, why: str) -> None:
        """There is nothing more to do here."""
        if self._code is None:
            self._code = code
            if why:
                self.say(why)

    def on_alone(self, reason: str) -> None:
        """The launcher is not there any more: without its vote the ranks here may be the smaller part of two."""
        self.finish(_EXIT_ALONE, f"the launcher of this job has gone ({reason}); the ranks here end")

    def on_slot_done(self, slot: _Slot) -> None:
        """The process of a slot has ended; nobody comes in its place where this node leaves."""
        if self._left_by is not None:
            slot.close()
            self._look_who_is_left()

    # What the user, the cluster and the reader say.

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if number not in _ENDING:
            for slot in self._slots:
                slot.signal(number)
        elif self._code is not None:  # All that is left is output that nobody reads.
            self._output.abandon()
        elif self._left_by is not None:
            self.finish(128 + number, f"{name}: the ranks here are killed")
        else:
            self._left_by = number
            self.say(f"{name}: the ranks here leave {LEAVING}; once more kills them")
            if self._options.shutdown_timeout is not None:
                self._loop.call_later(self._options.shutdown_timeout, lambda: self.finish(128 + number, ""))
            for slot in self._slots:
                slot.leave()
            self._look_who_is_left()

    def _look_who_is_left(self) -> None:
        # Not 0, which would tell the cluster that the job is done, and that nobody has to come here again.
        if self._left_by is not None and not any(slot.running for slot in self._slots):
            self.finish(128 + self._left_by, "")

    def _hold(self, kinds: frozenset[Kind]) -> None:
        for slot in self._slots:
            slot.hold(kinds)

    def _on_reader_gone(self) -> None:
        self._output.abandon_console()
        self.finish(128 + signal.SIGPIPE, "")


class _Slot(FarAgent):
    """One slot: a process after the other runs in it, as the launcher says."""

    def __init__(self, node: OwnNode, loop: Loop, guard: Guard, connection: socket.socket, secret: bytes) -> None:
        hello = {"machine": machine(), "address": connection.getsockname()[0], "ringcore": __version__}
        self._node = node
        self._connection = connection
        self._write_fd = os.dup(connection.fileno())
        self._ranks: set[int] = set()  # That run.
        self._leaving: set[int] = set()  # Of them, those that have said that they leave: a signal may be how.
        self._shown_held: frozenset[Kind] = frozenset()  # As the reader of this node's output says.
        super().__init__(loop, guard, (connection.fileno(), self._write_fd), {"secret": secret, "hello": hello})

    def leave(self) -> None:
        """Let the process here leave the job, or the slot if there is none."""
        if not self._ranks:
            self.close()
        for rank in self._ranks:
            self._agent.tell(rank, b'{"drain": true}\n')

    def signal(self, number: int) -> None:
        """Send a signal to the process here."""
        self._agent.signal(number)

    def hold(self, kinds: frozenset[Kind]) -> None:
        """Leave these streams unread."""
        self._shown_held = kinds
        self._hold()

    def close(self) -> None:
        """End the process here, and leave the launcher."""
        if self.running:
            super().close()
            self._connection.close()
            os.close(self._write_fd)

    def on_output(self, rank: int, kind: Kind, data: bytes) -> None:
        """See `Events`: it is shown here; the launcher, who tells what has ended a job, needs the last words."""
        if kind in (Kind.STDOUT, Kind.STDERR):
            self._node.show(rank, kind, data)
        elif kind is Kind.WORD and b'"leaves": true' in data:
            self._leaving.add(rank)
        if kind is not Kind.STDOUT:
            super().on_output(rank, kind, data)

    def on_exit(self, rank: int, how: RankExit) -> None:
        """See `Events`."""
        self._ranks.discard(rank)
        self._node.show_end(rank, how, in_order=rank in self._leaving)
        self._leaving.discard(rank)
        super().on_exit(rank, how)

    def on_note(self, text: str) -> None:
        """See `Events`."""
        self._node.note(text)

    def on_done(self) -> None:
        """See `Events`."""
        super().on_done()
        self._node.on_slot_done(self)

    def _start(self, job: HostJob) -> None:
        own = self._node.own_job(job)
        self._ranks.add(own.ranks[0].rank)
        super()._start(own)

    def _on_start_error(self, error: StartError) -> None:
        super()._on_start_error(error)
        self._node.finish(error.exit_code, str(error))

    def _on_frame(self, kind: Kind, rank: int, payload: bytes) -> None:
        if kind is Kind.LEAVE:
            told = table_of(payload, code=int, why=str)
            if not 0 <= told["code"] <= _MOST_CODE:
                raise ProtocolError(f"the launcher wants an exit code {told['code']}, which is none")
            self._node.finish(told["code"], told["why"])
        else:
            super()._on_frame(kind, rank, payload)

    def _hold(self) -> None:
        everything = frozenset((Kind.STDOUT, Kind.STDERR))
        self._agent.hold(everything if self._pipe.congested else self._held | self._shown_held)

    def _on_close(self, reason: str) -> None:
        self._node.on_alone(reason)


def _end_at_once(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def own_job(told: HostJob, options: Options, layout: JobLayout, key: bytes) -> HostJob:
    """What a node runs where the launcher wants a rank: of what it was told no more than who and where that is.

    Raises:
        ProtocolError: It is not one rank.
    """
    rank, silence_limit_s = told.ranks[0] if len(told.ranks) == 1 else None, told.silence_limit_s
    if rank is None or type(rank.rank) is not int or not 0 <= rank.rank <= _MOST_RANK:
        raise ProtocolError("the launcher wants something else than one rank in one slot")
    if not isinstance(silence_limit_s, int | float) or not 0 < silence_limit_s <= _MOST_SILENCE_S:
        raise ProtocolError("the launcher wants to be missed after a time that is none")
    return HostJob(
        ranks=(RankJob(rank.rank, _decided(rank.environ)),),
        argv=_layout.make_argv(options, _layout.this_python()),
        cwd=os.path.abspath(options.workdir or os.getcwd()),
        environ={**_layout.common_environ(options, layout, "", "", 0), **_decided(told.environ)},
        blobs={"RINGCORE_KEY_FD": key},
        speaks=True,
        sharers=layout.size,
        host=_plain(told.host) if isinstance(told.host, str) else None,
        silence_limit_s=silence_limit_s,
        drain_when=None if options.elastic is None else options.elastic.drain_when,
    )


def _decided(environ: Mapping[str, Any]) -> dict[str, str]:
    if not isinstance(environ, Mapping):
        raise ProtocolError("the launcher sent variables that are none")
    return {name: _plain(text) for name, text in environ.items() if name in _DECIDED and isinstance(text, str)}


def _plain(text: str) -> str:
    """What a process can be given as a variable."""
    with contextlib.suppress(UnicodeEncodeError):
        if b"\0" not in os.fsencode(text):
            return text
    raise ProtocolError("the launcher sent text that no process can be given")
