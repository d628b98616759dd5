"""`overlap="forward"`: `step` returns at once, and each bucket is stepped when its parameters are read again.

Whatever reads a parameter that is to be stepped waits for the average, and steps its bucket (deferred.py, pending.py).
So the next forward begins while the gradients of later layers are still on their way. The arithmetic is the
optimizer's own, called for the parameters of one bucket, with the learning rates and so on that it had when `step` was
called.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from ringcore_torch.buckets import Bucket
from ringcore_torch.deferred import DeferredUpdates
from ringcore_torch.pending import Update, why_not_hidden
from ringcore_torch.reducer import GradientReducer
from ringcore_torch.waiting import why_not_now
from ringcore_torch.wrapping import BY_ELEMENT


class ForwardOverlap(DeferredUpdates[Bucket]):
    """The updates of one optimizer that are still to be made.

    Args:
        optimizer: Steps some of its parameters by `step_groups`.
        reducer: Averages its gradients.
    """

    def __init__(self, optimizer: Any, reducer: GradientReducer) -> None:
        super().__init__()
        self._optimizer = optimizer
        self._reducer = reducer
        self._groups: dict[Bucket, list[dict[str, Any]]] = {}  # the optimizer's, of a bucket's parameters
        self._has_begun = False
        self.begin_anew()

    @property
    def _buckets(self) -> Sequence[Bucket]:
        return self._reducer.buckets

    def begin_anew(self) -> None:
        """The buckets are others; no update is to be made."""
        self._begin_anew()

    def defers(self, closure: object) -> bool:
        """Whether this step's updates wait for their use; where they cannot, says why, once."""
        begins, self._has_begun = not self._has_begun, True
        if begins or self._reducer.alone or self._reducer.compares:
            return False  # in the first step ranks learn which gradients are sparse
        reason = self._why_not(closure)
        if reason:
            self._tell(reason)
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
            self._groups[bucket] = narrowed(groups, set(map(id, bucket.parameters)))
            self._defer(bucket)

    def _follows(self, update: Update[Bucket]) -> bool:
        update.bucket.wait()
        return not update.bucket.has_sparse()  # ranks reduce these one by one, in one order

    def _make(self, update: Update[Bucket]) -> None:
        self._reducer.finish(update.bucket)
        self._optimizer.step_groups(self._groups.pop(update.bucket))

    def _finish(self, update: Update[Bucket]) -> None:
        super()._finish(update)
        update.bucket.reset()

    def _abandon(self) -> None:
        self._groups.clear()
        self._reducer.abandon()

    def drop_gradients(self, set_to_none: bool) -> None:
        """As soon as the updates are made."""
        for update in self._updates.values():
            update.drops = set_to_none


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
