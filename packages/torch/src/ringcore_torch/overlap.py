"""`overlap="forward"`: `step` returns at once, and each bucket is stepped when its parameters are read again.

Whatever reads a parameter that is to be stepped waits for the average, and steps its bucket (pending.py). So the next
forward begins while the gradients of later layers are still on their way. The arithmetic is the optimizer's own, called
for the parameters of one bucket, with the learning rates and so on that it had when `step` was called.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from ringcore import adapter
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.optim import optimizer as optimizers

from ringcore_torch.buckets import Bucket
from ringcore_torch.pending import Update, why_not_hidden
from ringcore_torch.reducer import GradientReducer
from ringcore_torch.waiting import watch, why_not_now
from ringcore_torch.wrapping import BY_ELEMENT

_log = logging.getLogger("ringcore")


class ForwardOverlap:
    """The updates of one optimizer that are still to be made.

    Args:
        optimizer: Steps some of its parameters by `step_groups`.
        reducer: Averages its gradients.
    """

    def __init__(self, optimizer: Any, reducer: GradientReducer) -> None:
        self._optimizer = optimizer
        self._reducer = reducer
        self._updates: dict[Bucket, Update] = {}  # in the order of the buckets, which is that of all ranks
        self._used: list[Bucket] = []  # in the order of the first forward that was seen
        self._has_begun = False
        self._has_told = False
        self.begin_anew()
        watch(self)

    def begin_anew(self) -> None:
        """The buckets are others; no update is to be made."""
        self._used.clear()
        # Until it is known what is used first: the first layers are in the last one.
        for place, bucket in enumerate(reversed(self._reducer.buckets)):
            bucket.priority = adapter.priority_of(place)

    def defers(self, closure: object) -> bool:
        """Whether this step's updates wait for their use; where they cannot, says why, once."""
        begins, self._has_begun = not self._has_begun, True
        if begins or self._reducer.alone or self._reducer.compares:
            return False  # in the first step ranks learn which gradients are sparse
        reason = self._why_not(closure)
        if reason and not self._has_told:
            self._has_told = True
            _log.warning('overlap="forward" does nothing in this step, and in others like it: %s', reason)
        return not reason

    def _why_not(self, closure: object) -> str:
        optimizer = self._optimizer
        if closure is not None:
            return "step() was given a closure"
        if not self._reducer.should_synchronize or any(bucket.finished for bucket in self._reducer.buckets):
            return "the averages were asked for before step(), by synchronize() or a GradScaler"
        if self._reducer.has_seen_sparse:
            return "gradients are sparse"
        if reason := why_not_now():
            return reason
        hooks = (
            optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks,
            optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks,
        )  # fmt: skip
        return "hooks are to run before or after step()" if any(hooks) else ""

    def defer(self) -> None:
        """Send what is not on its way yet, and let every bucket's update wait for its use."""
        self.settle()
        self._follow_first_forward()
        self._reducer.submit_rest()
        groups = [
            {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in group.items()}
            for group in self._optimizer.param_groups
        ]
        for bucket in self._reducer.buckets:
            gradients = [parameter.grad for parameter in bucket.parameters]
            own = narrowed(groups, set(map(id, bucket.parameters)))
            self._updates[bucket] = Update(self.settle_one, bucket, own, gradients)
            self._updates[bucket].hide()

    def _follow_first_forward(self) -> None:
        """What was used first is the most urgent, from now on."""
        if len(self._used) == len(self._reducer.buckets):
            for place, bucket in enumerate(self._used):
                bucket.priority = adapter.priority_of(place)

    def settle_one(self, update: Update) -> None:
        """Wait for a bucket's averages, and step it."""
        with self._giving_up_on_errors():
            update.show()
            update.bucket.wait()
            if update.bucket.has_sparse():
                self._settle_all()  # ranks reduce these one by one, in one order
            else:
                self._make(update)
        if len(self._used) < len(self._reducer.buckets):
            self._used.append(update.bucket)

    def settle(self) -> None:
        """Step all that wait for it."""
        with self._giving_up_on_errors():
            self._settle_all()

    def _settle_all(self) -> None:
        for update in list(self._updates.values()):
            update.show()
        for update in list(self._updates.values()):
            self._make(update)

    def _make(self, update: Update) -> None:
        del self._updates[update.bucket]
        with _apart():
            self._reducer.finish(update.bucket)
            self._optimizer.step_groups(update.groups)
        update.finish()
        update.bucket.reset()

    @contextlib.contextmanager
    def _giving_up_on_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            for update in self._updates.values():
                update.show()
            self._updates.clear()
            self._reducer.abandon()
            raise

    @property
    def is_pending(self) -> bool:
        """Whether any bucket is still to be stepped."""
        return bool(self._updates)

    def drop_gradients(self, set_to_none: bool) -> None:
        """As soon as the updates are made."""
        for update in self._updates.values():
            update.drops = set_to_none


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


def narrowed(groups: list[dict[str, Any]], parameters: set[int]) -> list[dict[str, Any]]:
    """The groups of an optimizer, with those of their parameters that are among these, by `id`."""
    return [{**group, "params": [one for one in group["params"] if id(one) in parameters]} for group in groups]


def why_never(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor], *, is_elastic: bool) -> str:
    """Why updates of this optimizer cannot be made one by one; empty where they can."""
    kind = type(optimizer)
    known = [inspect.unwrap(one.step) for one in BY_ELEMENT if issubclass(kind, one)]
    if inspect.unwrap(kind.step) not in known:
        return f"a step of {kind.__name__} may need all gradients"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "the optimizer is differentiable"
    if reason := why_not_hidden(parameters):
        return reason
    return "in an elastic job the ranks that are there at the end of a step repeat it" if is_elastic else ""
