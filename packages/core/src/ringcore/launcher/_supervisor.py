"""Runs a job: starts its hosts, passes signals and output on, ends all when one rank fails."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringcore.environment.watching import OrderError
from ringcore.launcher import _layout, _placed, _process, _remote, _summary, _watching
from ringcore.launcher._frames import Kind
from ringcore.launcher._guard import Guard
from ringcore.launcher._job import HostJob, RankExit, RankJob
from ringcore.launcher._layout import JobLayout, Node
from ringcore.launcher._loop import Loop, Timer
from ringcore.launcher._options import Options
from ringcore.launcher._output import Output
from ringcore.launcher._summary import Failure
from ringcore.launcher.agent import Agent, free_port

if TYPE_CHECKING:
    from ringcore.bootstrap import RendezvousServer

# After a failure the others wait for a rank that is gone; after a signal from outside they may save their state.
_GRACE_S = {None: 0.35, signal.SIGINT: 5.0, signal.SIGTERM: 30.0, signal.SIGHUP: 30.0}
# A rank that says that it lost another may have overtaken the one that failed ...
_SETTLE_S = 0.1
# ... which is known and still runs: its exit handlers, most likely, and those of a framework take their time.
_LEAVING_S = 5.0
# The scheduler may know of the end of an agent's process before its connection tells.
_HEAR_S = 4.0
# SIGKILL ends everything but a process that the kernel itself holds.
_KILL_LIMIT_S = 5.0
_EXIT_PIPE = 128 + signal.SIGPIPE
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)


@dataclasses.dataclass(frozen=True)
class JobInput:
    """What the ranks of a job get besides their command.

    Attributes:
        blobs: See `HostJob.blobs`; holds the key.
        job_id: Name of the job.
        rendezvous: Where the ranks meet.
        on_result: Takes (rank, piece) of what ranks write to their result descriptors; `None`: they have none.
        gate: Where the agents dial that a scheduler starts.
        on_well_ended: Takes a rank that has ended with exit status 0, whom others may wait for in init(); None: who
            serves the rendezvous is another one, or a process may come in its place.
        serve: Serves the rendezvous of an elastic job, whose hosts are not known before it runs, at this address.
    """

    blobs: dict[str, bytes]
    job_id: str
    rendezvous: str
    on_result: Callable[[int, bytes], None] | None = None
    gate: _placed.Gate | None = None
    on_well_ended: Callable[[int], None] | None = None
    serve: Callable[[str], RendezvousServer] | None = None


class Supervisor:
    """One job from start to end."""

    def __init__(
        self,
        loop: Loop,
        guard: Guard,
        output: Output,
        options: Options,
        layout: JobLayout,
        given: JobInput,
        start_timeout_s: float,
    ) -> None:
        self._loop = loop
        self._guard = guard
        self._output = output
        self._options = options
        self._layout = layout
        self._given = given
        self._start_timeout_s = start_timeout_s
        self._hosts: dict[int, Agent | _remote.FarHost] = {}
        self._hello: dict[int, dict[str, Any]] = {}
        self._open: set[int] = set(range(len(layout.nodes)))
        self._running = {slot.rank for node in layout.nodes for slot in node.slots}
        self._servers = {slot.rank for node in layout.nodes for slot in node.slots if slot.serves}
        self._failures: list[Failure] = []
        self.blamed: int | None = None  # The rank that ended the job.
        self._told: set[int] = set()  # These have told the caller what their function returned or raised.
        self._exit_code: int | None = None  # Decided by something else than a rank.
        self._signal: int | None = None
        self._launched = False
        self._stopping = False
        self._served = False  # Its servers have nothing left to do, and are to end.
        self._killed = False
        self._impatient = False
        self._settle: Timer | None = None
        self._started_at = time.monotonic()
        self._failed_after_s = 0.0

    def run(self) -> int:
        """Run the job to its end, and return the launcher's exit code."""
        self._loop.on_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *FORWARDED), self._on_signal)
        self._output.on_hold = self._hold
        self._output.on_reader_gone = lambda: self.stop(_EXIT_PIPE)
        try:
            self._connect()
            while self._goes_on():
                self._loop.run_once()
            self._part()
        finally:
            for host in self._hosts.values():
                host.close()
        return self._conclude()

    def stop(self, code: int) -> None:
        """End the job for a reason outside of it, with this exit code."""
        self._exit_code = code
        self._impatient = True
        self._output.abandon_console()
        self._kill()

    def on_abandoned(self) -> None:
        """The scheduler does no more for this job: end it, but first let what has ended a rank or an agent be heard."""
        delay_s = _HEAR_S if self._launched and self._hello else 0.0
        self._loop.call_later(delay_s, lambda: self._give_in("the scheduler has ended its tasks"))

    def _goes_on(self) -> bool:
        """Whether there is anything to wait for."""
        return bool(self._open)

    def _part(self) -> None:
        """The job is over: say so where somebody has to know."""

    def ask(self, question: str, done: Callable[[_watching.Answers], None]) -> None:
        """Ask all ranks, for somebody who looks at the job."""
        hosts = [self._hosts[index] for index in self._open] if self._launched else []
        _watching.HostInquiry(self._loop, list(hosts), question, done)

    def order(self, order: str) -> str:
        """Change the job as its user has ordered.

        Raises:
            OrderError: It cannot be changed.
        """
        raise OrderError("its ranks are fixed. Remedy: start a job that is to be changed with ringrun --min-np N")

    # Start.

    def _connect(self) -> None:
        for index, node in enumerate(self._layout.nodes):
            events = NodeEvents(self, index)
            if self._given.gate is not None:
                self._hosts[index] = self._given.gate.host(index, node.name, events, self._options.agent_timeout)
            elif node.remote is None:
                self._hosts[index] = Agent(self._loop, self._guard, events)
            else:
                self._hosts[index] = self._connect_to(node, events)
        if not self._layout.has_remote:
            self._launch()
            return
        self._loop.call_later(self._start_timeout_s, self._on_start_timeout)

    def _connect_to(self, node: Node, events: NodeEvents) -> _remote.RemoteHost:
        assert node.remote is not None
        argv = _remote.ssh_argv(
            node.remote.name.replace("[", "").replace("]", ""),
            port=self._options.ssh_port,
            identity_file=self._options.ssh_identity_file,
            connect_timeout_s=self._start_timeout_s,
            python=self._options.remote_python or _layout.this_python(),
            python_path=os.environ.get("PYTHONPATH"),
        )
        self.note(f"connecting to {node.name}: {' '.join(argv)}")
        return _remote.RemoteHost(self._loop, node.name, argv, events, self._options.agent_timeout)

    def on_hello(self, index: int, hello: dict[str, Any]) -> None:
        """An agent is there; when all are, the job starts."""
        self._hello[index] = hello
        self.note(f"{self._layout.nodes[index].name} answers: {hello['host']}, Python {hello['python']}")
        if len(self._hello) == sum(node.is_far for node in self._layout.nodes) and not self._stopping:
            self._launch()

    def _on_start_timeout(self) -> None:
        if not self._launched and not self._stopping:
            silent = [
                node.name for index, node in enumerate(self._layout.nodes) if node.is_far and index not in self._hello
            ]
            self._abort(
                f"host {', '.join(silent)} did not answer within {self._start_timeout_s:g} s (--start-timeout)", 1
            )

    def _launch(self) -> None:
        self._launched = True
        self._started_at = time.monotonic()
        if self._given.gate is not None:
            self._layout = _placed.arrange(
                self._layout, [self._hello[index] for index in range(len(self._layout.nodes))]
            )
        port = self._layout.master_port or (self._hello[0]["port"] if 0 in self._hello else free_port())
        common = _layout.common_environ(self._options, self._layout, self._given.job_id, self._given.rendezvous, port)
        self.note(f"rendezvous {self._given.rendezvous}, torch's {common['MASTER_ADDR']}:{port}")
        for index, node in enumerate(self._layout.nodes):
            if index in self._open:
                self._launch_on(index, node, common)

    def _launch_on(self, index: int, node: Node, common: dict[str, str]) -> None:
        job = self._job_of(index, node, common)
        self.note(f"{node.name}: ranks {[slot.rank for slot in node.slots]}, {' '.join(job.argv)}")
        try:
            self._hosts[index].start(job)
        except _process.StartError as error:
            self.on_lost(index, str(error), error.exit_code)

    def _job_of(self, index: int, node: Node, common: dict[str, str]) -> HostJob:
        python = _layout.this_python()
        if node.remote is not None:
            python = self._options.remote_python or python
            common = {**_layout.forwarded_environ(os.environ), **common}
        if node.placed:
            python = self._hello[index]["executable"]
        return HostJob(
            ranks=tuple(
                RankJob(
                    slot.rank,
                    _layout.rank_environ(self._layout, slot, self._options.role),
                    _layout.server_argv(python) if slot.serves else None,
                )
                for slot in node.slots
            ),
            sharers=sum(not slot.serves for slot in node.slots) or None,
            argv=_layout.make_argv(self._options, python),
            cwd=self._hello[index]["cwd"] if node.placed else os.path.abspath(self._options.workdir or os.getcwd()),
            environ=common,
            blobs=self._given.blobs,
            wants_result=self._given.on_result is not None,
            stdin_rank=None if node.is_far or self._given.on_result else 0,
            silence_limit_s=self._options.agent_timeout,
        )

    # Events.

    def on_output(self, rank: int, kind: Kind, data: bytes) -> None:
        """A rank wrote something."""
        if kind is not Kind.RESULT:
            self._output.feed(rank, kind, data)
        elif self._given.on_result is not None:
            self._told.add(rank)
            self._given.on_result(rank, data)

    def on_exit(self, rank: int, how: RankExit) -> None:
        """A rank has ended."""
        self._output.end(rank)
        self._running.discard(rank)
        if how.code == 0:
            self._output.release(rank)
            if self._given.on_well_ended is not None:
                self._given.on_well_ended(rank)
        if rank in self._servers and self._served:
            return
        if how.code == 0 and self._servers and self._running <= self._servers and not self._stopping:
            self._served = True
            self._begin_stop(signal.SIGTERM, _GRACE_S[None])
        if how.code == 0 or self._signal is not None or self._exit_code is not None:
            return
        shown = self._output.has_shown(rank)
        failure = Failure(rank, how, self._output.tail(rank), by_launcher=self._stopping, shown=shown)
        if not self._failures:
            self._failed_after_s = time.monotonic() - self._started_at
        self._failures.append(failure)
        if not self._stopping:
            self._on_failure(failure)

    def _on_failure(self, failure: Failure) -> None:
        """A rank has failed by itself: the others are to end."""
        how = failure.how
        if how.lost_rank is None or not self._running:
            self._end_others()
        elif self._settle is None:
            self._settle = self._loop.call_later(self._patience_with(how.lost_rank), self._end_others)

    def _patience_with(self, lost_rank: int) -> float:
        """How long to wait for the rank that is to blame, before all are ended: its exit code tells most."""
        if lost_rank not in self._running or _summary.traceback_of(self._output.tail(lost_rank)):
            return _SETTLE_S
        return _LEAVING_S

    def on_done(self, index: int) -> None:
        """Nothing is left on a host."""
        self._open.discard(index)

    def on_lost(self, index: int, reason: str, code: int) -> None:
        """A host is gone, or could not start its ranks."""
        self._open.discard(index)
        self._running -= {slot.rank for slot in self._layout.nodes[index].slots}
        if not self._stopping or not self._failures:
            if self._launched and not self._stopping:
                self.blamed = self._layout.nodes[index].slots[0].rank
            self._abort(reason, code)

    def note(self, text: str) -> None:
        """Say something to a user who asked for details."""
        if self._options.verbose:
            self._output.say(f"ringrun: {text}")

    # End.

    def _give_in(self, reason: str) -> None:
        """End the job as it has no future, unless a failure ends it already."""
        self._abort(reason, 1)

    def _abort(self, reason: str, code: int) -> None:
        if self._exit_code is None and not self._stopping:
            self._exit_code = code
            self._output.say(f"ringrun: {reason}")
        if not self._launched:
            self._stopping = True
            self._open.clear()
        else:
            self._end_others()

    def _end_others(self) -> None:
        if not self._stopping:
            self._begin_stop(signal.SIGTERM, _GRACE_S[None])

    def _begin_stop(self, number: int, grace_s: float) -> None:
        self._stopping = True
        self._output.hurry()
        for index in list(self._open):  # One that cannot be told any more is lost here.
            self._hosts[index].signal(number)
        if self._options.shutdown_timeout is not None:
            grace_s = self._options.shutdown_timeout
        self._loop.call_later(grace_s, self._kill)

    def _kill(self) -> None:
        if self._killed or not self._open:
            return
        self._stopping = self._killed = True
        self._output.hurry()
        if not self._launched:
            self._open.clear()
        for index in list(self._open):
            self._hosts[index].kill()
        self._loop.call_later(_KILL_LIMIT_S, self._give_up)

    def _give_up(self) -> None:
        if self._open:
            names = ", ".join(dict.fromkeys(self._host_of(index) for index in sorted(self._open)))
            self._output.say(f"ringrun: processes on {names} did not end within {_KILL_LIMIT_S:g} s of SIGKILL")
            self._exit_code = self._exit_code or 1
            self._output.abandon_soon()
            os._exit(self._conclude())  # Closing would wait for them; the guard goes on trying.

    def _on_signal(self, number: int) -> None:
        if number in FORWARDED:
            for index in list(self._open) if self._launched else ():
                self._hosts[index].signal(number)
        elif not self._open:  # All that is left is output that nobody reads.
            self._signal = number
            self._output.abandon()
        elif self._stopping:
            self._kill()
        else:
            self._signal = number
            name = signal.Signals(number).name
            if not self._launched:
                self._kill()
                return
            self._begin_stop(number, _GRACE_S[signal.Signals(number)])
            again = "; once more kills them" if self._running else ""
            self._output.say(f"ringrun: {name}: passed on to the ranks{again}")

    def _host_of(self, index: int) -> str:
        return self._layout.nodes[index].name

    def _hold(self, kinds: frozenset[Kind]) -> None:
        for index in list(self._open):
            if index in self._hosts:
                self._hosts[index].hold(kinds)

    def _conclude(self) -> int:
        """Says how the job ended, waits until all is read, and returns the exit code."""
        if self._signal is None and self._exit_code is None and self._failures:
            self._report(_summary.find_cause(self._failures))
        else:
            self._output.release(*(rank for rank, _ in self._output.held()))
        if self._impatient or self._signal is not None:
            self._output.abandon_soon()
        return self._output.write_out(self._code, "ringrun: all ranks ended well")

    def _code(self) -> int:
        if self._signal is not None:
            return 128 + self._signal
        if self._exit_code is not None:
            return self._exit_code
        return _summary.find_cause(self._failures).exit_code if self._failures else 0

    def _report(self, cause: Failure) -> None:
        self.blamed = cause.rank
        host = next(n.name for n in self._layout.nodes if any(s.rank == cause.rank for s in n.slots))
        log = self._log_of(cause)
        summary = _summary.Summary(cause, self._failures, self._layout.size, host, self._failed_after_s, log)
        if cause.rank not in self._told:
            if not summary.is_whole and not self._options.log_dir:
                summary.log = self._keep_last_words()
            self._output.say("\n".join(summary.lines()))
        self._write_error_files(cause)

    def _log_of(self, cause: Failure) -> str | None:
        directory = self._options.log_dir
        return directory and os.path.join(directory, f"rank.{cause.rank}", "stderr")

    def _keep_last_words(self) -> str | None:
        """Writes what was held back from the console to a file, where there are no log files."""
        import tempfile

        if not self._output.held():
            return None
        try:
            fd, path = tempfile.mkstemp(prefix="ringrun-", suffix=".stderr")
            with open(fd, "wb") as file:
                for rank, words in self._output.held():
                    file.write(b"rank %d:\n%s\n" % (rank, words))
        except OSError:
            return None
        return path

    def _write_error_files(self, cause: Failure) -> None:
        paths = [os.environ.get("TORCHELASTIC_ERROR_FILE")]
        if self._options.log_dir:
            paths.append(os.path.join(self._options.log_dir, "error.json"))
        for path in filter(None, paths):
            try:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(_summary.error_file_text(cause))
            except OSError as error:
                self._output.say(f"ringrun: cannot write the error file {path}: {error.strerror}")


class NodeEvents:
    """Tells the supervisor what happens on one of its hosts."""

    def __init__(self, supervisor: Supervisor, index: int) -> None:
        self._supervisor = supervisor
        self._index = index
        self.on_output = supervisor.on_output
        self.on_exit = supervisor.on_exit
        self.on_note = supervisor.note

    def on_done(self) -> None:
        self._supervisor.on_done(self._index)

    def on_hello(self, hello: dict[str, Any]) -> None:
        self._supervisor.on_hello(self._index, hello)

    def on_lost(self, reason: str, code: int) -> None:
        self._supervisor.on_lost(self._index, reason, code)
