"""Whether gradients are still what backward has left, where an optimizer averages them in `step`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from ringcore import InvalidArgument


class Unchanged:
    """Watches the gradients of some parameters from backward to `step`.

    Clipping by the norm of this rank's own gradients is what it is for: that changes them in place. A gradient that was
    assigned is meant.

    Args:
        named: The parameters.
        remedy: What to do instead, in the words of the optimizer.
    """

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]], remedy: str) -> None:
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._remedy = remedy
        # By parameter: the gradient that backward has left, and its version.
        self._left: list[tuple[torch.Tensor | None, int]] = []
        self.begin_anew()
        hooks = [
            parameter.register_post_accumulate_grad_hook(_hook(weakref.ref(self), index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(self._parameters)
            if parameter.requires_grad
        ]
        weakref.finalize(self, _remove, hooks)

    def begin_anew(self) -> None:
        """The gradients that come are those of another step; those that are there may be changed."""
        self._left = [(None, 0)] * len(self._parameters)

    def note(self, index: int, gradient: torch.Tensor | None) -> None:
        """Backward has left a gradient."""
        self._left[index] = (gradient, 0 if gradient is None else gradient._version)

    def check(self) -> None:
        """Refuse gradients that were changed in place; `torch.amp.GradScaler` unscales them without a trace.

        Raises:
            InvalidArgument: One was.
        """
        for name, parameter, (left, version) in zip(self._names, self._parameters, self._left, strict=True):
            if left is not None and parameter.grad is left and left._version != version:
                raise InvalidArgument(
                    f"the gradient of '{name}' was changed in place between backward() and step(), before it is "
                    f"averaged: this rank's own gradient, whose norm is not that of the average. Remedy: {self._remedy}"
                )


def _hook(watch: weakref.ref[Unchanged], index: int) -> Callable[[torch.Tensor], None]:
    def note(parameter: torch.Tensor) -> None:
        owner = watch()
        if owner is not None:
            owner.note(index, parameter.grad)

    return note


def _remove(hooks: Iterable[torch.utils.hooks.RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
