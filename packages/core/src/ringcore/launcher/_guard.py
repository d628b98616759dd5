"""A small process that outlives the launcher by a moment, to end what a killed launcher leaves behind.

The kernel ends the ranks themselves when their parent dies (see `_process`), but not what the ranks started:
data loader workers, shells' children. The guard knows each rank's process group, waits until the launcher's end
of a pipe is closed, which no way of dying can prevent, and kills the groups.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

# What the guard does at the end takes a moment; this is for one that hangs.
LIMIT_S = 5.0


class Guard:
    """The launcher's handle of its guard process."""

    def __init__(self, pid: int, write_fd: int) -> None:
        self._pid = pid
        self._write_fd = write_fd

    @classmethod
    def start(cls) -> Guard:
        """Fork the guard. To be called while this process has one thread only."""
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                _run(read_fd)
            finally:
                os._exit(0)
        os.close(read_fd)
        return cls(pid, write_fd)

    def watch(self, group: int) -> None:
        """Kill the process group `group` when this process is gone."""
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        """The group has ended; its number may be another's from now on."""
        self._tell(f"-{group}")

    def remove_directory(self, path: str) -> None:
        """Remove a directory of plain files when this process is gone."""
        self._tell(f"/{path}")

    def close(self) -> None:
        """Let the guard do what there is left to do, and wait until it has; not for one that was stopped."""
        os.close(self._write_fd)
        if not self._ends_within(LIMIT_S):
            os.kill(self._pid, signal.SIGKILL)
            self._ends_within(LIMIT_S)

    def _ends_within(self, limit_s: float) -> bool:
        descriptor = os.pidfd_open(self._pid)
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            ended = bool(poll.poll(limit_s * 1000))
        finally:
            os.close(descriptor)
        if ended:
            os.waitpid(self._pid, 0)
        return ended

    def _tell(self, line: str) -> None:
        # Broken if someone killed the guard. The ranks still die with the launcher then, though not what they started.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write_fd, os.fsencode(line) + b"\0")


def _run(read_fd: int) -> None:
    os.setsid()  # Ctrl-C at the terminal is for the launcher.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    read_fd = _keep_only(read_fd)
    groups, directories = _listen(read_fd)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # It may have ended by itself.
            os.killpg(group, signal.SIGKILL)
    for directory in directories:
        remove_directory(directory)


def _keep_only(fd: int) -> int:
    """Closes every descriptor but `fd`: the guard must not hold the launcher's pipes open."""
    null = os.open(os.devnull, os.O_RDWR)
    kept = os.dup2(fd, 3) if fd != 3 else fd
    for standard in range(3):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):  # Not all possible numbers: containers allow a billion.
        if int(name) > kept:
            with contextlib.suppress(OSError):  # The one that was listed with.
                os.close(int(name))
    return kept


def _listen(read_fd: int) -> tuple[set[int], set[str]]:
    groups: set[int] = set()
    directories: set[str] = set()
    text = b""
    while data := os.read(read_fd, 65536):
        *lines, text = (text + data).split(b"\0")
        for line in lines:
            word = os.fsdecode(line[1:])
            if line[:1] == b"+":
                groups.add(int(word))
            elif line[:1] == b"-":
                groups.discard(int(word))
            else:
                directories.add(word)
    return groups, directories


def remove_directory(path: str) -> None:
    """Remove a directory that holds plain files only; what cannot be removed stays."""
    try:
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
    except OSError:
        pass
