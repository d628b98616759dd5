"""What a collective of the backend returns.

Of tensors on a GPU an operation has ended for the host when it was launched. Whoever waits for it lets his current
stream wait, and that one alone: the stream in which it was submitted goes on with what it has to compute.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from ringcore import TimeoutError as RingcoreTimeoutError
from ringcore import rank
from ringcore.adapter import Handle
from torch._C._distributed_c10d import Work

from ringcore_torch.distributed.completer import Completer

# torch.distributed's "as long as the backend waits".
_NO_TIMEOUT = timedelta(0)


class RingWork(Work):
    """An operation on the way.

    Args:
        handle: Of the engine.
        tensors: What the future is set to.
        completer: Sets futures.
        finish: Writes results to where the caller wants them; called once, by whoever notices first that it has ended.
        limit_s: How long `wait` waits where it is not told.
        device: The GPU that its tensors lie on; None: they lie in the host's memory, or it has none.
    """

    def __init__(
        self, handle: Handle, tensors: list[torch.Tensor], completer: Completer,
        finish: Callable[[Handle], None] | None = None, limit_s: float = math.inf, device: torch.device | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.handle = handle
        self.tensors = tensors
        self.device = device
        self._completer = completer
        self._finish = finish
        self._limit_s = limit_s
        self._lock = threading.Lock()  # Guards: _finish, _written, _future.
        self._written: Any = None  # on a GPU: the event behind what `finish` has given to a stream
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait until the results are there; on a GPU the current stream does, and the host until it is launched.

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
                if self.device is not None:
                    self.handle.wait()  # another thread may have waited since, in its own stream: results are in that
                self._finish(self.handle)
                self._finish = None
                if self.device is not None:
                    self._written = _record(self.device, self.tensors)
            elif self._written is not None:
                torch.cuda.current_stream(self.device).wait_event(self._written)

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """As `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, successfully or not, on a GPU as well; the results are there then."""
        if not self.handle.landed():
            return False
        return self.exception() is not None or self._written is None or bool(self._written.query())

    def is_success(self) -> bool:
        """Whether it has ended without an error; the results are there then."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Why it failed; None also while it is on the way."""
        if self.handle.landed():
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
        """A future of the tensors that hold the results. On a GPU it is set when they are on the way."""
        with self._lock:
            if self._future is None:
                # PyTorch runs what hangs on a future of a GPU in a stream of its own, and lets that of whoever waits
                # for the future wait for it.
                devices: list[Any] | None = None if self.device is None else [self.device]
                ended: torch.futures.Future[None] = torch.futures.Future(devices=devices)
                # `set_exception` would store the exception as a value, which PyTorch's C++ takes for tensors.
                self._future = ended.then(lambda _: self.result())
                self._completer.watch(self.handle, ended)
            return self._future


class CoalescedWork(RingWork):
    """Several operations that are waited for together."""

    def __init__(self, works: list[RingWork], completer: Completer, limit_s: float) -> None:
        tensors = [tensor for work in works for tensor in work.tensors]
        device = next((work.device for work in works if work.device is not None), None)
        super().__init__(works[-1].handle, tensors, completer, limit_s=limit_s, device=device)
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


def _record(device: torch.device, tensors: list[torch.Tensor]) -> Any:
    """The event behind what the current stream was given to write to tensors, whose memory stays until then."""
    stream = torch.cuda.current_stream(device)
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(stream)
    return stream.record_event()
