"""Sets the futures of operations that have ended."""

from __future__ import annotations

import queue
import threading

import torch
from ringcore.adapter import Handle

# So long a future's thread waits for one operation before it looks at the others.
_LOOK_AROUND_S = 0.002

_Watched = tuple[Handle, "torch.futures.Future[None]"]


class Completer:
    """Sets futures when their operations end.

    One thread at a time leads: it waits for the next operation to end. Before it runs what hangs on the future, which
    may wait for other futures itself, it lets another one lead.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._watched: queue.SimpleQueue[_Watched | None] = queue.SimpleQueue()
        self._leading = threading.Lock()  # Guards: _waiting, _closed.
        self._waiting: list[_Watched] = []
        self._closed = False
        self._lock = threading.Lock()  # Guards: _idle.
        self._idle = 0  # threads that do not run anybody's callbacks

    def watch(self, handle: Handle, future: torch.futures.Future[None]) -> None:
        """Set a future when an operation has ended, successfully or not."""
        self._watched.put((handle, future))
        self._ensure_idle()

    def close(self) -> None:
        """Let the threads end, as soon as all futures are set."""
        self._watched.put(None)

    def _ensure_idle(self) -> None:
        with self._lock:
            if self._idle > 0:
                return
            self._idle += 1
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _ends(self) -> bool:
        """Whether a thread that has found nothing to do may end: not if a future has come since, which relies on it."""
        with self._lock:
            if not self._watched.empty():
                return False
            self._idle -= 1
            return True

    def _next(self) -> _Watched | None:
        """Waits for an operation to end. Mostly the first one does; a message may be waited for longer than others.

        Returns:
            What hangs on it; None: closed, and no operation is waited for.
        """
        while True:
            while not self._watched.empty() or not (self._waiting or self._closed):
                item = self._watched.get()
                if item is None:
                    self._closed = True
                else:
                    self._waiting.append(item)
            if not self._waiting:
                return None
            self._waiting[0][0].done(_LOOK_AROUND_S)  # not `wait`: no stream of this thread is held back
            for index, (handle, _) in enumerate(self._waiting):
                if handle.done():
                    return self._waiting.pop(index)

    def _run(self) -> None:
        while True:
            with self._leading:
                item = self._next()
            if item is None:
                if self._ends():
                    return
                continue
            with self._lock:
                self._idle -= 1
            self._ensure_idle()
            item[1].set_result(None)
            del item
            with self._lock:
                self._idle += 1
