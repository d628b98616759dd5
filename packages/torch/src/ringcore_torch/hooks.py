"""What happens when backward has a gradient ready: its bucket takes it, and is submitted when it has all.

Where a submission would only take turns with backward on the same core, the reducer makes it when backward is done.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from ringcore import InvalidArgument

from ringcore_torch.buckets import Bucket

if TYPE_CHECKING:
    from ringcore_torch.reducer import GradientReducer


class Hooks:
    """Those of the parameters of one reducer."""

    def __init__(self) -> None:
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __bool__(self) -> bool:
        return bool(self._handles)

    def add(self, reducer: GradientReducer) -> None:
        """To the parameters of its buckets. They hold no reducer: one that nobody steps any more is freed."""
        for bucket in reducer.buckets:
            for index, parameter in enumerate(bucket.parameters):
                # One hook tells that a new round has begun, and when its gradients are complete.
                if bucket is not reducer.hookless or parameter is bucket.parameters[-1]:
                    hook = _hook(weakref.ref(reducer), bucket, index)
                    self._handles.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Parameters are as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _hook(reducer: weakref.ref[GradientReducer], bucket: Bucket, index: int) -> Callable[[torch.Tensor], None]:
    passes, count = bucket.passes, len(bucket.parameters)

    def collect(parameter: torch.Tensor) -> None:
        owner = reducer()
        if owner is None or owner.alone:
            return
        if bucket.held:  # of a graph that was made before the last step
            parameter._ring_update.settle()  # type: ignore[attr-defined]
        bucket.touched = True
        if bucket.on_gpu:
            bucket.note_stream()
        if not owner.collects:
            return
        if bucket.finished:
            owner.reset()  # the step was skipped, and this is the next one
        if bucket is owner.hookless:
            passes[index] += 1
            bucket.sealed = False
            if passes[index] >= owner.passes_per_step:
                _after_backward(bucket.seal_arrived)
            return
        if bucket.handle is not None or passes[index] == owner.passes_per_step:
            raise InvalidArgument(
                f"'{bucket.names[index]}' got a gradient when it was complete, or its average on the way: backward ran "
                f"more than backward_passes_per_step = {owner.passes_per_step} times before step(). Raise "
                "backward_passes_per_step, or call zero_grad() to drop the gradients"
            )
        grad = parameter.grad
        if bucket.takes_early and grad is not None and (owner.sparse_as_dense or not grad.is_sparse):
            bucket.take(index, grad)
        passes[index] += 1
        if passes[index] == owner.passes_per_step:
            bucket.ready += 1
            if bucket.ready == count:
                bucket.seal()
                if owner.overlaps and not owner.compares_arguments:
                    owner.launch(bucket, early=True)

    return collect


def _after_backward(callback: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)
