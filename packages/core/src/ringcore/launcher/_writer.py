"""Writes to files without waiting: a terminal, pipe or disk that takes nothing stops nobody but a thread.

What a pipe takes at once is written at once, as a thread in between costs more than the writing. What it does not take,
and everything for files that Linux cannot ask (terminals, disks, and pipes before Linux 6.4), goes to the thread.
"""

from __future__ import annotations

import collections
import errno
import os
import select
import threading
from collections.abc import Callable

from ringcore.launcher._loop import Loop

# More than this unwritten: whoever produces it should wait until little is left.
_CONGESTED_BYTES = 4 << 20
_RELIEVED_BYTES = 1 << 20
# More than this: who cannot wait should drop.
_FULL_BYTES = 16 << 20
_PIECE_BYTES = 1 << 16
_WHERE_IT_STANDS = -1  # pwritev's word for the file's own offset


class Writer:
    """Writes what it is given in this order, to one file or several."""

    def __init__(self, loop: Loop, on_error: Callable[[int, int], None], on_change: Callable[[], None]) -> None:
        """Make a writer; its thread starts with the first bytes.

        Args:
            loop: Makes the calls below, on its own thread.
            on_error: Called with a descriptor that cannot be written, and the error's number. What is unwritten, or
                comes later, is dropped.
            on_change: Called when `congested` or `idle` may have changed.
        """
        self._loop = loop
        self._on_error = on_error
        self._on_change = on_change
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # Guards all below.
        self._queue: collections.deque[tuple[int, bytes | memoryview]] = collections.deque()
        self._unwritten_bytes = 0
        self._congested = False
        self._failed: set[int] = set()
        self._needs_thread: set[int] = set()
        self._untold: list[tuple[int, int]] = []
        self._abandoned = False
        self._asked = False  # Somebody has seen that something is unwritten, and wants to know when it is not.
        self._wake_fd = -1

    @property
    def congested(self) -> bool:
        """Whether whoever produces bytes should wait."""
        return self._congested  # One word, which may be old by a moment.

    @property
    def full(self) -> bool:
        """Whether whoever cannot wait should drop what comes."""
        with self._changed:
            full = self._unwritten_bytes > _FULL_BYTES
            self._asked = self._asked or full
            return full

    @property
    def idle(self) -> bool:
        """Whether everything was written or dropped, and every error told."""
        with self._changed:
            idle = self._unwritten_bytes == 0 and not self._untold
            self._asked = self._asked or not idle
            return idle

    def write(self, fd: int, data: bytes | memoryview) -> None:
        """Write bytes as soon as the file takes them."""
        if self._unwritten_bytes == 0 and fd not in self._needs_thread and not self._abandoned:
            data = memoryview(data)[self._write_at_once(fd, data) :]
        with self._changed:
            if not data or fd in self._failed or self._abandoned:
                return
            self._queue.append((fd, data))
            self._unwritten_bytes += len(data)
            self._congested = self._congested or self._unwritten_bytes > _CONGESTED_BYTES
            self._changed.notify()
        if self._thread is None:
            self._start()

    def _write_at_once(self, fd: int, data: bytes | memoryview) -> int:
        """How many bytes the file took without waiting, whatever others have made of its blocking mode."""
        try:
            return os.pwritev(fd, [data], _WHERE_IT_STANDS, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError:  # It cannot be asked; or it has another fault, which the thread will meet as well.
            self._needs_thread.add(fd)
            return 0

    def abandon(self) -> None:
        """Drop what is unwritten and what comes later: the thread may be stuck for good."""
        with self._changed:
            self._abandoned = True
            self._queue.clear()
            self._untold.clear()
            self._unwritten_bytes = 0
            self._congested = False

    def _start(self) -> None:
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop.on_readable(self._wake_fd, self._on_wake)
        # A daemon, because the process must be able to end while it is stuck.
        self._thread = threading.Thread(target=self._run, name="ringrun-writer", daemon=True)
        self._thread.start()

    def _on_wake(self) -> None:
        os.eventfd_read(self._wake_fd)
        with self._changed:
            untold, self._untold = self._untold, []
        for fd, number in untold:
            self._on_error(fd, number)
        self._on_change()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                fd, data = self._queue.popleft()
            view = memoryview(data)
            while view:
                piece, view = view[:_PIECE_BYTES], view[_PIECE_BYTES:]
                if fd not in self._failed:
                    self._write_piece(fd, piece)
                self._account(len(piece))

    def _write_piece(self, fd: int, piece: memoryview) -> None:
        while piece:
            try:
                piece = piece[os.write(fd, piece) :]
            except BlockingIOError:  # Someone who shares the terminal has made it non-blocking.
                select.select([], [fd], [])
            except OSError as error:
                with self._changed:
                    self._failed.add(fd)
                    self._untold.append((fd, error.errno or errno.EIO))
                return

    def _account(self, count: int) -> None:
        """So many bytes more were written or dropped."""
        with self._changed:
            self._unwritten_bytes = max(0, self._unwritten_bytes - count)
            relieved = self._congested and self._unwritten_bytes < _RELIEVED_BYTES
            if relieved:
                self._congested = False
            news = relieved or bool(self._untold) or (self._asked and not self._unwritten_bytes)
            if news:
                self._asked = self._asked and self._unwritten_bytes > 0
        if news:
            os.eventfd_write(self._wake_fd, 1)
