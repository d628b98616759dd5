"""A sharded optimizer's gradients are averaged beside backward: a row is sent when its last gradient is there."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable

import torch
from ringcore import InvalidArgument, RingcoreError

from ringcore_torch.flat import FlatParameters, Wait


class BackwardScatters:
    """What one optimizer has sent of its gradients before `step`.

    Args:
        flats: The rows.
        passes_per_step: Backward passes whose gradients are summed before they are averaged.
        sends: A row is sent when its last gradient is there; else all are at `step`.
    """

    def __init__(self, flats: Iterable[FlatParameters], passes_per_step: int, *, sends: bool) -> None:
        self._passes_per_step = passes_per_step
        self._sends = sends
        self._rows = [_Row(flat) for flat in flats]
        hooks = [
            parameter.register_post_accumulate_grad_hook(_hook(weakref.ref(self), row, index))  # type: ignore[no-untyped-call]
            for row in self._rows
            for index, parameter in enumerate(row.flat.parameters)
            if parameter.requires_grad
        ]
        weakref.finalize(self, _remove, hooks)

    def collect(self, row: _Row, index: int) -> None:
        """A parameter has a gradient.

        Raises:
            InvalidArgument: It had all of them.
        """
        if row.passes[index] == self._passes_per_step:
            raise InvalidArgument(
                f"'{row.flat.names[index]}' got a gradient when it was complete, or its average on the way: backward "
                f"ran more than backward_passes_per_step = {self._passes_per_step} times before step(). Raise "
                "backward_passes_per_step, or call the optimizer's zero_grad() to drop the gradients"
            )
        row.passes[index] += 1
        if row.passes[index] == self._passes_per_step:
            row.missing -= 1
            if row.missing == 0 and self._sends:
                row.flat.check()
                row.send()

    def start(self) -> list[Wait]:
        """Send what has not been sent yet, and tell how to wait for all."""
        waiting = [row for row in self._rows if row.wait is None]
        for row in waiting:
            row.flat.check()
        for row in waiting:
            row.send()
        return [row.take for row in self._rows]

    def begin_anew(self) -> None:
        """The gradients that come are those of another step."""
        for row in self._rows:
            if row.wait is not None:
                with contextlib.suppress(RingcoreError):  # nobody wants it any more, and `step` has told why
                    row.wait()
            row.reset()


class _Row:
    """The gradients of one row, in one step.

    Attributes:
        passes: By parameter: its backward passes so far.
        missing: How many parameters have not had all of theirs.
        wait: Returns when the averages are there, once they are on their way.
    """

    def __init__(self, flat: FlatParameters) -> None:
        self.flat = flat
        self.reset()

    def reset(self) -> None:
        """Nothing has come."""
        self.passes = [0] * len(self.flat.parameters)
        self.missing = sum(parameter.requires_grad for parameter in self.flat.parameters)
        self.wait: Wait | None = None
        self._sent: list[tuple[torch.Tensor | None, int]] = []

    def send(self) -> None:
        """What has come is averaged, and may not be changed."""
        self._sent = self._now()
        self.wait = self.flat.start_reducescatter()

    def take(self) -> None:
        """Wait for the averages.

        Raises:
            InvalidArgument: A gradient was changed since they were sent.
        """
        wait, self.wait = self.wait, None
        if wait is not None:
            wait()
        for name, sent, now in zip(self.flat.names, self._sent, self._now(), strict=True):
            if sent[0] is not now[0] or sent[1] != now[1]:
                raise InvalidArgument(
                    f"the gradient of '{name}' was changed while its average was on the way; clip with "
                    "optimizer.clip_grad_norm(), and leave out overlap= with a GradScaler, or where ranks assign other "
                    "gradients before step()"
                )

    def _now(self) -> list[tuple[torch.Tensor | None, int]]:
        gradients = [parameter.grad for parameter in self.flat.parameters]
        return [(gradient, -1 if gradient is None else gradient._version) for gradient in gradients]


def _hook(scatters: weakref.ref[BackwardScatters], row: _Row, index: int) -> Callable[[torch.Tensor], None]:
    def collect(_: torch.Tensor) -> None:
        owner = scatters()
        if owner is not None:
            owner.collect(row, index)

    return collect


def _remove(hooks: Iterable[torch.utils.hooks.RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
