"""One thread that waits for file descriptors, timers and signals."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from types import FrameType

Callback = Callable[[], None]


class Timer:
    """A call that is due at a time, and can be cancelled."""

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Make the call never happen."""
        self.callback = None


class Loop:
    """Calls back when a descriptor is ready, a timer is due or a signal has arrived."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def on_readable(self, fd: int, callback: Callback) -> None:
        """Call back whenever `fd` has something to read, or its other end is closed."""
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def on_writable(self, fd: int, callback: Callback) -> None:
        """Call back whenever `fd` takes data."""
        self._selector.register(fd, selectors.EVENT_WRITE, callback)

    def forget(self, fd: int) -> None:
        """Call back no more for `fd`; nothing happens if it is not known."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def call_later(self, delay_s: float, callback: Callback) -> Timer:
        """Call back once, after `delay_s` seconds."""
        timer = Timer(callback)
        due = time.monotonic() + delay_s
        heapq.heappush(self._timers, (due, next(self._order), timer))
        return timer

    def on_signals(self, signals: Iterable[int], callback: Callable[[int], None]) -> None:
        """Call back with the number of each signal that arrives; `nohup`'s SIGHUP stays ignored.

        Only the main thread of a process may call this.
        """

        def nothing(_number: int, _frame: FrameType | None) -> None:
            """Keeps Python's handler from acting: the number comes through the wake-up descriptor."""

        # SIGINT is not left ignored, though shells start background jobs so: kill -INT means to end the job.
        wanted = set(signals)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            wanted.discard(signal.SIGHUP)
        read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for number in wanted:
            signal.signal(number, nothing)

        def read() -> None:
            for number in os.read(read_fd, 256):
                if number in wanted:
                    callback(number)

        self.on_readable(read_fd, read)

    def run_once(self) -> None:
        """Wait until something is due, and make its calls."""
        ready = self._selector.select(self._until_next_timer())
        for key, _ in ready:
            # An earlier call of this round may have forgotten the descriptor, or closed and reused it.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                callback()

    def _until_next_timer(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - time.monotonic())
