"""Starts the ranks of one host, passes on what they print, and ends them.

`Agent` is used by the launcher itself for local ranks, and by `python -m ringcore.launcher.agent` at the far end
of an ssh connection, where it takes the job from standard input and answers on standard output.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ringcore.environment.hidden import memory_file
from ringcore.environment.loss import LOSS_FILE_VARIABLE
from ringcore.environment.settings import CLEAR_TEXT
from ringcore.environment.watching import WATCH_FILE_VARIABLE
from ringcore.launcher import _frames, _process, _watching
from ringcore.launcher._frames import FramePipe, Kind
from ringcore.launcher._guard import Guard, remove_directory
from ringcore.launcher._job import LEAVING, Events, HostJob, RankExit, RankJob
from ringcore.launcher._loop import Loop, Timer
from ringcore.launcher._preemption import PreemptionNotice

Start = Callable[..., _process.Process]

_READ_BYTES = 1 << 16
# A pipe holds at most 1 MiB unless a privileged process raised it; what is more comes from living grandchildren.
_DRAIN_READS = 32
_ERROR_FILE_BYTES = 1 << 16
_LOSS_FILE_BYTES = 64
# multiprocessing's resource tracker and the like end by themselves a moment after their rank.
_LEFTOVER_GRACE_S = 0.2
_LEFTOVER_POLL_S = 0.01


class Agent:
    """The ranks of this host."""

    def __init__(self, loop: Loop, guard: Guard, events: Events, start: Start = _process.start) -> None:
        """Make an agent without ranks.

        Args:
            loop: Calls back.
            guard: Is told what to end if this process is killed.
            events: Is told what happens.
            start: Starts a rank, as `_process.start` does.
        """
        self._start_process = start
        self._loop = loop
        self._guard = guard
        self._events = events
        self._processes: dict[int, _process.Process] = {}
        self._groups: dict[int, _process.Process] = {}  # rank -> not known to have ended with all it started
        self._pipes: dict[int, tuple[int, Kind]] = {}  # descriptor -> (rank, what it carries)
        self._lines: dict[int, int] = {}  # rank -> descriptor to speak with it
        self._held: frozenset[Kind] = frozenset()
        self._directory: str | None = None
        self._notice: PreemptionNotice | None = None
        self._drained = False

    def start(self, job: HostJob) -> None:
        """Start all ranks of this host.

        Raises:
            StartError: One could not be started; the others were ended.
        """
        self._directory = _private_directory()
        self._guard.remove_directory(self._directory)
        self._blobs = {name: memory_file(name, data) for name, data in job.blobs.items()}
        common = {**os.environ, **job.environ}
        for name in ("RINGCORE_KEY_FILE", "RINGCORE_LAUNCHER_FD"):
            common.pop(name, None)
        if not common.get("OMP_NUM_THREADS"):
            cores = usable_cores()
            sharers = job.sharers or len(job.ranks)
            common["OMP_NUM_THREADS"] = str(max(1, cores // sharers))
            self._events.on_note(
                f"OMP_NUM_THREADS={common['OMP_NUM_THREADS']} on {socket.gethostname()}: {cores} cores for "
                f"{sharers} ranks; set the variable to choose another number"
            )
        if common.get("RINGCORE_ENCRYPTION", "").lower() == "off":
            self._events.on_note(f"RINGCORE_ENCRYPTION=off on {socket.gethostname()}: {CLEAR_TEXT}")
        try:
            for rank_job in job.ranks:
                self._start_rank(job, rank_job, common)
        except _process.StartError:
            self.kill()
            raise
        finally:
            for fd in self._blobs.values():
                os.close(fd)
        if job.drain_when is not None:
            environ = {**common, "HOROVOD_HOSTNAME": job.host or socket.gethostname()}
            self._notice = PreemptionNotice(
                self._loop, job.drain_when, environ, job.cwd, self._on_notice, self._say_beside_ranks
            )
            self._notice.ask()

    def signal(self, number: int) -> None:
        """Send a signal to all ranks; one that ends processes also to what the ranks started."""
        for process in self._processes.values():
            if number in (signal.SIGUSR1, signal.SIGUSR2):
                process.signal_leader(number)
            else:
                process.signal_group(number)

    def tell(self, rank: int, data: bytes) -> None:
        """Say something to a rank; nothing happens if it is gone."""
        if rank in self._lines:
            with contextlib.suppress(OSError):  # It ends, or has not read for so long that this is news no more.
                os.write(self._lines[rank], data)

    def kill(self) -> None:
        """End all ranks and what they started, now."""
        for process in self._groups.values():
            process.signal_group(signal.SIGKILL)

    def hold(self, kinds: frozenset[Kind]) -> None:
        """Leave these streams of the ranks unread: they wait in their writes when nobody takes what they print."""
        changed, self._held = kinds ^ self._held, kinds
        for fd, (_, kind) in self._pipes.items():
            if kind in changed:
                self._listen(fd)

    def ask(self, question: str, done: Callable[[_watching.Answers], None]) -> None:
        """Ask the ranks of this host, for somebody who looks at the job."""
        paths = {rank: Path(self._watch_file(rank)) for rank in self._processes}
        _watching.RankInquiry(self._loop, paths, question, done)

    def close(self) -> None:
        """End everything at once and let go of all descriptors."""
        if self._notice is not None:
            self._notice.close()
        self.kill()
        for process in self._groups.values():
            process.popen.wait()
        for process in self._processes.values():  # The loop may run on, to write out what they have printed.
            self._loop.forget(process.pidfd)
            os.close(process.pidfd)
        self._processes.clear()
        for fd in list(self._pipes):
            self._close_pipe(fd)
        if self._directory is not None:
            remove_directory(self._directory)

    def drain(self) -> bool:
        """Let the ranks of an elastic job leave in order, as this agent is told to end.

        Returns:
            Whether they will: else they cannot, or were told so before and have not.
        """
        if self._drained or not self._lines:
            return False
        self._drained = True
        self._tell_to_leave("SIGTERM: the agent of this host is to end")
        return True

    def _on_notice(self) -> None:
        self._tell_to_leave("--drain-when: this host is about to go")

    def _tell_to_leave(self, why: str) -> None:
        self._say_beside_ranks(f"{why}; its ranks leave {LEAVING}")
        for rank in list(self._lines):
            self.tell(rank, b'{"drain": true}\n')

    def _say_beside_ranks(self, text: str) -> None:
        """Say something of this host where its ranks write, which tells the reader which host it is."""
        for rank in list(self._processes)[:1]:
            self._events.on_output(rank, Kind.STDERR, f"ringrun: {text}\n".encode())

    def _start_rank(self, job: HostJob, rank_job: RankJob, common: dict[str, str]) -> None:
        rank = rank_job.rank
        environ = {**common, **rank_job.environ, "TORCHELASTIC_ERROR_FILE": self._error_file(rank)}
        environ[LOSS_FILE_VARIABLE] = self._loss_file(rank)
        environ[WATCH_FILE_VARIABLE] = self._watch_file(rank)
        environ["HOROVOD_HOSTNAME"] = job.host or socket.gethostname()
        environ.update({name: str(fd) for name, fd in self._blobs.items()})
        inherit = list(self._blobs.values())
        result_read, result_write = -1, -1
        if job.wants_result:
            result_read, result_write = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(result_read, False)
            environ["RINGCORE_RESULT_FD"] = str(result_write)
            inherit.append(result_write)
        ours, theirs = socket.socketpair() if job.speaks else (None, None)
        if theirs is not None:
            environ["RINGCORE_LAUNCHER_FD"] = str(theirs.fileno())
            inherit.append(theirs.fileno())
        try:
            process = self._start_process(
                rank_job.argv or job.argv,
                environ=environ,
                cwd=job.cwd,
                stdin=0 if rank == job.stdin_rank else subprocess.DEVNULL,
                inherit=inherit,
            )
        finally:
            if job.wants_result:
                os.close(result_write)
            if theirs is not None:
                theirs.close()
        self._guard.watch(process.group)
        self._processes[rank] = self._groups[rank] = process
        self._pipes[process.stdout_fd] = (rank, Kind.STDOUT)
        self._pipes[process.stderr_fd] = (rank, Kind.STDERR)
        if job.wants_result:
            self._pipes[result_read] = (rank, Kind.RESULT)
        if ours is not None:
            ours.setblocking(False)
            self._lines[rank] = ours.detach()
            self._pipes[self._lines[rank]] = (rank, Kind.WORD)
        for fd, (owner, _) in self._pipes.items():
            if owner == rank:
                self._listen(fd)
        self._loop.on_readable(process.pidfd, functools.partial(self._on_exit, rank))

    def _listen(self, fd: int) -> None:
        self._loop.forget(fd)
        if self._pipes[fd][1] not in self._held:
            self._loop.on_readable(fd, functools.partial(self._on_output, fd))

    def _on_output(self, fd: int) -> None:
        self._pass_on(fd)

    def _pass_on(self, fd: int) -> bool:
        """Passes on one piece; false when there is none for now."""
        rank, kind = self._pipes[fd]
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # A rank that ended without reading what it was told.
            data = b""
        if not data:
            self._close_pipe(fd)
            return False
        self._events.on_output(rank, kind, data)
        return True

    def _close_pipe(self, fd: int) -> None:
        rank, kind = self._pipes.pop(fd)
        self._loop.forget(fd)
        if kind is Kind.WORD:
            del self._lines[rank]
        popen = self._groups[rank].popen
        pipe = {Kind.STDOUT: popen.stdout, Kind.STDERR: popen.stderr}.get(kind)
        if pipe is None:
            os.close(fd)
        else:
            pipe.close()

    def _on_exit(self, rank: int) -> None:
        process = self._processes.pop(rank)
        self._loop.forget(process.pidfd)
        os.close(process.pidfd)
        for fd in [fd for fd, (owner, _) in self._pipes.items() if owner == rank]:
            for _ in range(_DRAIN_READS):
                if not self._pass_on(fd):
                    break
        code = process.popen.wait()
        self._events.on_exit(rank, RankExit(code, self._error_text(rank), self._lost_rank(rank)))
        if not self._processes:
            if self._notice is not None:
                self._notice.close()
            self._end_leftovers(self._loop.call_later(_LEFTOVER_GRACE_S, self.kill))

    def _end_leftovers(self, deadline: Timer) -> None:
        """Waits until what the ranks started has ended too; the deadline kills it."""
        for rank, process in list(self._groups.items()):
            process.reap_group()
            if not process.signal_group(0):
                self._guard.forget(process.group)
                for fd in [fd for fd, (owner, _) in self._pipes.items() if owner == rank]:
                    # The last words of a grandchild. One that left the group keeps the pipe open, and is left alone.
                    for _ in range(_DRAIN_READS):
                        if not self._pass_on(fd):
                            break
                    if fd in self._pipes:
                        self._close_pipe(fd)
                del self._groups[rank]
        if self._groups:
            self._loop.call_later(_LEFTOVER_POLL_S, functools.partial(self._end_leftovers, deadline))
            return
        deadline.cancel()
        if self._directory is not None:
            remove_directory(self._directory)
        self._events.on_done()

    def _error_file(self, rank: int) -> str:
        assert self._directory is not None
        return os.path.join(self._directory, f"rank.{rank}.error.json")

    def _loss_file(self, rank: int) -> str:
        assert self._directory is not None
        return os.path.join(self._directory, f"rank.{rank}.loss.json")

    def _watch_file(self, rank: int) -> str:
        assert self._directory is not None
        return os.path.join(self._directory, f"rank.{rank}.watch")

    def _lost_rank(self, rank: int) -> int | None:
        """What the rank has said of another: anything may stand there, as it is a program of the user's."""
        try:
            with open(self._loss_file(rank), "rb") as file:
                said = json.loads(file.read(_LOSS_FILE_BYTES))
        except (OSError, ValueError):
            return None
        lost_rank = said.get("lost_rank") if isinstance(said, dict) else None
        return lost_rank if type(lost_rank) is int else None

    def _error_text(self, rank: int) -> str | None:
        try:
            with open(self._error_file(rank), "rb") as file:
                return file.read(_ERROR_FILE_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"(error file not readable: {error.strerror})"


def usable_cores() -> int:
    """Cores that this process may use: its affinity, and the CPU limit of its container."""
    cores = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota_us, period_us = file.read().split()
    except (OSError, ValueError):
        return cores
    return cores if quota_us == "max" else max(1, min(cores, int(quota_us) // int(period_us)))


def free_port() -> int:
    """A TCP port that nobody listens on at this moment, for torch's rendezvous on rank 0."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def _private_directory() -> str:
    """Makes a directory of mode 0700; tempfile.mkdtemp would cost 10 ms of imports."""
    parent = os.environ.get("TMPDIR") or "/tmp"
    path = os.path.join(parent, f"ringrun-{os.urandom(8).hex()}")
    try:
        os.mkdir(path, 0o700)
    except OSError as error:
        raise _process.StartError(
            f"cannot make a directory in {parent}: {error.strerror}; TMPDIR names another place", 1
        ) from None
    return path


class FarAgent:
    """An agent whose launcher is at the other end of a connection.

    Args:
        loop: Calls back.
        guard: See `Agent`.
        fds: To read from the launcher, and another one to write to it.
        given: See `serve`.
        start: Starts a rank, as `_process.start` does.
    """

    def __init__(
        self, loop: Loop, guard: Guard, fds: tuple[int, int], given: Mapping[str, Any], start: Start = _process.start
    ) -> None:
        self._given = given
        self._loop = loop
        self._agent = Agent(loop, guard, self, start)
        self.running = True  # The launcher is there.
        self.failed = False  # A rank has ended badly.
        self._done = False
        self._silence: Timer | None = None
        self._silence_limit_s = 30.0
        self._held: frozenset[Kind] = frozenset()  # As the launcher says.
        seals = _frames.Seals.of_agent(given["secret"]) if "secret" in given else None
        self._pipe = FramePipe(loop, *fds, on_frame=self._on_frame, on_close=self._on_close, seals=seals)
        self._pipe.on_drained = self._hold

    def greet(self) -> None:
        """Tell the launcher that this host waits for a job."""
        hello = {"host": socket.gethostname(), "port": free_port(), "python": sys.version.split()[0]}
        hello |= {"executable": sys.executable, "cwd": os.getcwd(), **self._given.get("hello", {})}
        self._pipe.send_raw(_frames.MAGIC)
        self._pipe.send(Kind.HELLO, 0, json.dumps(hello).encode())
        self._restart_silence()

    @property
    def has_done(self) -> bool:
        """Whether the launcher knows that no process of its job is left here."""
        return self._done and self._pipe.idle

    def close(self) -> None:
        """End everything at once, and hear nothing more."""
        self.running = False
        if self._silence is not None:
            self._silence.cancel()
        self._pipe.close()
        self._agent.close()

    # Events of the agent.

    def on_output(self, rank: int, kind: Kind, data: bytes) -> None:
        """See `Events`."""
        self._pipe.send(kind, rank, data)
        if self._pipe.congested:
            self._hold()

    def on_exit(self, rank: int, how: RankExit) -> None:
        """See `Events`."""
        self.failed |= how.code != 0
        self._pipe.send(Kind.EXIT, rank, json.dumps(dataclasses.asdict(how)).encode())

    def on_note(self, text: str) -> None:
        """See `Events`."""
        self._pipe.send(Kind.NOTE, 0, text.encode())

    def on_done(self) -> None:
        """See `Events`."""
        self._done = True
        self._pipe.send(Kind.DONE)

    # Events of the connection.

    def _on_frame(self, kind: Kind, rank: int, payload: bytes) -> None:
        self._restart_silence()
        if kind is Kind.JOB:
            job = HostJob.from_json(payload)
            self._start(dataclasses.replace(job, blobs=job.blobs | self._given.get("blobs", {})))
        elif kind is Kind.SIGNAL:
            self._agent.signal(rank)
        elif kind is Kind.KILL:
            self._agent.kill()
        elif kind is Kind.WORD:
            self._agent.tell(rank, payload)
        elif kind is Kind.ASK:
            self._agent.ask(payload.decode(), lambda answers: self._answer(rank, answers))
        elif kind is Kind.HOLD:
            self._held = _frames.held_kinds(rank)
            self._hold()

    def _answer(self, number: int, answers: _watching.Answers) -> None:
        self._pipe.send(Kind.ANSWER, number, json.dumps(answers).encode())

    def _hold(self) -> None:
        everything = frozenset((Kind.STDOUT, Kind.STDERR, Kind.RESULT))
        self._agent.hold(everything if self._pipe.congested else self._held)

    def _start(self, job: HostJob) -> None:
        self._silence_limit_s = job.silence_limit_s
        self._restart_silence()
        try:
            self._agent.start(job)
        except _process.StartError as error:
            self._on_start_error(error)

    def _on_start_error(self, error: _process.StartError) -> None:
        self._pipe.send(Kind.FAILED, 0, json.dumps({"message": str(error), "code": error.exit_code}).encode())
        self._done = True

    def _restart_silence(self) -> None:
        # The connection may have been cut without a word to either end.
        if self._silence is not None:
            self._silence.cancel()
        self._silence = self._loop.call_later(self._silence_limit_s, self._on_silence)

    def _on_silence(self) -> None:
        self._on_close(f"nothing was heard for {self._silence_limit_s:g} s")

    def _on_close(self, _reason: str) -> None:
        self.running = False

    def drain(self) -> bool:
        """See `Agent.drain`."""
        return self._agent.drain()


def serve(given: Mapping[str, Any], start: Start = _process.start) -> bool:
    """Serve one launcher, at standard input and output.

    Args:
        given: More than a launcher gives that has started this by ssh: see `external.hosting`.
        start: Starts a rank, as `_process.start` does.

    Returns:
        Whether the launcher was there to hear that a rank had ended badly, and another may run here.
    """
    guard = Guard.start()
    loop = Loop()
    agent = FarAgent(loop, guard, (0, 1), given, start)

    told_to_end = False

    def end(number: int) -> None:
        nonlocal told_to_end
        told_to_end = True
        # Whoever ends a host or a pod sends SIGTERM first; a second one, or another signal, ends the ranks at once.
        agent.running = number == signal.SIGTERM and agent.drain()

    loop.on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), end)
    agent.greet()
    while agent.running and not agent.has_done:
        loop.run_once()
    heard = agent.has_done
    agent.close()
    guard.close()
    return heard and agent.failed and not told_to_end


if __name__ == "__main__":
    serve({})
