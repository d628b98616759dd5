"""What a collective of the backend returns, and the futures of it."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable
from datetime import timedelta

import torch
from ringcore import RingcoreError, rank
from ringcore import TimeoutError as RingcoreTimeoutError
from ringcore.adapter import Handle
from torch._C._distributed_c10d import Work

# torch.distributed's "as long as the backend waits".
_NO_TIMEOUT = timedelta(0)
# So long a future's thread waits for one operation before it looks at the others.
_LOOK_AROUND_S = 0.002

_Watched = tuple[Handle, "torch.futures.Future[None]"]


class RingWork(Work):
    """An operation on the way.

    Args:
        handle: Of the engine.
        tensors: What the future is set to.
        completer: Sets futures.
        finish: Writes results to where the caller wants them; called once, by whoever notices first that it has ended.
        limit_s: How long `wait` waits where it is not told.
    """

    def __init__(
        self, handle: Handle, tensors: list[torch.Tensor], completer: Completer,
        finish: Callable[[Handle], None] | None = None, limit_s: float = math.inf,
    ) -> None:  # fmt: skip
        super().__init__()
        self.handle = handle
        self.tensors = tensors
        self._completer = completer
        self._finish = finish
        self._limit_s = limit_s
        self._lock = threading.Lock()  # Guards: _finish, _future.
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait until the results are there.

        Raises:
            TimeoutError: `timeout` has passed; the operation goes on.
            RingcoreError: Why it failed, on every rank the same.
        """
        limit_s = self._limit_s if timeout <= _NO_TIMEOUT else timeout.total_seconds()
        if not self.handle.wait(limit_s):
            raise RingcoreTimeoutError(
                f"'{self.handle.name}' has not ended on rank {rank()} within {limit_s:g} s, and goes on; wait again, "
                "or give the group a longer timeout if other ranks are slower"
            )
        self._write_results()
        return True

    def _write_results(self) -> None:
        with self._lock:
            if self._finish is not None:
                self._finish(self.handle)
                self._finish = None

    def synchronize(self) -> None:
        """Wait until the results are there."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, successfully or not; the results are there then."""
        if not self.handle.done():
            return False
        self.exception()
        return True

    def is_success(self) -> bool:
        """Whether it has ended without an error; the results are there then."""
        return self.handle.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Why it failed; None also while it is on the way."""
        if self.handle.done():
            try:
                self.wait()
            except Exception as error:
                return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the results."""
        self.wait()
        return self.tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors that hold the results."""
        with self._lock:
            if self._future is None:
                ended: torch.futures.Future[None] = torch.futures.Future()
                # `set_exception` would store the exception as a value, which PyTorch's C++ takes for tensors.
                self._future = ended.then(lambda _: self.result())
                self._completer.watch(self.handle, ended)
            return self._future


class CoalescedWork(RingWork):
    """Several operations that are waited for together."""

    def __init__(self, works: list[RingWork], completer: Completer, limit_s: float) -> None:
        tensors = [tensor for work in works for tensor in work.tensors]
        super().__init__(works[-1].handle, tensors, completer, limit_s=limit_s)
        self._works = works

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait until all results are there; `timeout` is for each."""
        return all(work.wait(timeout) for work in self._works)

    def is_completed(self) -> bool:
        """Whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all have ended without an error."""
        return all(work.is_success() for work in self._works)


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
            with contextlib.suppress(RingcoreError):  # who wants the result is told
                self._waiting[0][0].wait(_LOOK_AROUND_S)
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
