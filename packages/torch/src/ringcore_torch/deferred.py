"""Updates that are made when their parameters are read, of whatever optimizer makes them.

What an adapter says of its own is how a bucket is stepped, and what is dropped when that fails.
"""

from __future__ import annotations

import abc
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Generic

import torch
from ringcore import adapter
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from ringcore_torch.pending import AnyBucket, Update
from ringcore_torch.waiting import watch

_log = logging.getLogger("ringcore")


class DeferredUpdates(abc.ABC, Generic[AnyBucket]):
    """The updates of one optimizer that are still to be made."""

    def __init__(self) -> None:
        self._updates: dict[
            AnyBucket, Update[AnyBucket]
        ] = {}  # in the order of the buckets, which is that of all ranks
        self._used: list[AnyBucket] = []  # in the order of the first forward that was seen
        self._has_told = False
        watch(self)

    @property
    @abc.abstractmethod
    def _buckets(self) -> Sequence[AnyBucket]:
        """Those of a step, in an order that is that of all ranks."""

    @abc.abstractmethod
    def _make(self, update: Update[AnyBucket]) -> None:
        """Step a bucket whose parameters are shown; its averages may still be on their way."""

    @abc.abstractmethod
    def _abandon(self) -> None:
        """A step has failed: drop what is on its way."""

    def _follows(self, update: Update[AnyBucket]) -> bool:
        """Wait for a bucket's averages; whether it can be stepped before those that ranks have put before it."""
        update.bucket.wait()
        return True

    def _tell(self, reason: str) -> None:
        """Why a step is as without, once."""
        if not self._has_told:
            self._has_told = True
            _log.warning('overlap="forward" does nothing in this step, and in others like it: %s', reason)

    def _begin_anew(self) -> None:
        """The buckets are others; no update is to be made."""
        self._used.clear()
        # Until it is known what is used first: the first layers are in the last one.
        for place, bucket in enumerate(reversed(self._buckets)):
            bucket.priority = adapter.priority_of(place)

    def _follow_first_forward(self) -> None:
        """What was used first is the most urgent, from now on."""
        if len(self._used) == len(self._buckets):
            for place, bucket in enumerate(self._used):
                bucket.priority = adapter.priority_of(place)

    def _defer(self, bucket: AnyBucket) -> None:
        """From now on whoever reads one of its parameters waits."""
        gradients = [parameter.grad for parameter in bucket.parameters]
        self._updates[bucket] = Update(self.settle_one, bucket, gradients)
        self._updates[bucket].hide()

    def settle_one(self, update: Update[AnyBucket]) -> None:
        """Wait for a bucket's averages, and step it."""
        with self._giving_up_on_errors():
            update.show()
            if self._follows(update):
                self._finish(update)
            else:
                self._settle_all()
        if len(self._used) < len(self._buckets):
            self._used.append(update.bucket)

    def settle(self) -> None:
        """Step all that wait for it."""
        with self._giving_up_on_errors():
            self._settle_all()

    def _settle_all(self) -> None:
        for update in list(self._updates.values()):
            update.show()
        for update in list(self._updates.values()):
            self._finish(update)

    def _finish(self, update: Update[AnyBucket]) -> None:
        del self._updates[update.bucket]
        with _apart():
            self._make(update)
        update.finish()

    @contextlib.contextmanager
    def _giving_up_on_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            for update in self._updates.values():
                update.show()
            self._updates.clear()
            self._abandon()
            raise

    @property
    def is_pending(self) -> bool:
        """Whether any bucket is still to be stepped."""
        return bool(self._updates)


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """What is done inside is no part of a model that `torch.jit.trace` looks at, or that `torch.func` transforms."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        with temporarily_clear_interpreter_stack():
            yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]
