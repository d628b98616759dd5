"""A bucket whose gradients are views into one row of registered memory, and are reduced there."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from ringcore import adapter

from ringcore_torch.buckets.bucket import Bucket, new_flags
from ringcore_torch.compression import Compressor
from ringcore_torch.memory import registered_zeros

_ALIGNMENT_BYTES = 64


class FlatBucket(Bucket):
    """Gradients in one piece of registered memory: they become views into it and are reduced where they lie."""

    takes_early = True

    def __init__(
        self, name: str, parameters: list[torch.Tensor], names: list[str], compression: type[Compressor],
        *, keeps_errors: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(name, parameters, names)
        wide = self.dtype in compression.wide_dtypes
        self.quantised = compression.quantised if wide else self.quantised
        # Among quantised gradients flags might become 0.
        self.flags_apart = self.on_gpu or self.quantised != adapter.QUANTISED["none"]
        align = _ALIGNMENT_BYTES // self.dtype.itemsize
        starts, end = [], 0
        for parameter in parameters:
            starts.append(end)
            end += -(-parameter.numel() // align) * align
        flags = 0 if self.flags_apart else 2 * len(parameters)
        self._flat = registered_zeros(end + flags, self.dtype, self.device)
        compresses = compression.wire_dtype is not None and wide
        self._wire = (
            registered_zeros(len(self._flat), compression.wire_dtype, self.device) if compresses else self._flat
        )
        self._twin: torch.Tensor | None = None
        self._starts, self._end = starts, end
        if self.flags_apart:
            self.flags = new_flags(parameters)
        self._look()
        loses = keeps_errors and wide and (compresses or self.quantised != adapter.QUANTISED["none"])
        self._errors = torch.zeros(end, dtype=self.dtype, device=self.device) if loses else None
        self.errors = {
            name: self._errors[start : start + one.numel()].view_as(one)
            for name, start, one in zip(names, starts, parameters, strict=True)
            if self._errors is not None
        }

    def _look(self) -> None:
        self._views = [
            self._flat[start : start + one.numel()].view_as(one)
            for start, one in zip(self._starts, self.parameters, strict=True)
        ]
        if not self.flags_apart:
            self.flags = self._flat[self._end :].view(2, -1)

    def take(self, index: int, grad: torch.Tensor) -> None:  # noqa: D102
        view = self._views[index]
        if grad.is_sparse or grad.data_ptr() != view.data_ptr() or grad.stride() != view.stride():
            self.check(index, grad)
            _copy(grad.to_dense() if grad.is_sparse else grad, view)
            self.parameters[index].grad = view

    def leave_out(self, index: int) -> None:  # noqa: D102
        self._views[index].zero_()

    def arrays(self) -> tuple[Any, ...]:  # noqa: D102
        if self._errors is not None:
            self._add_errors(self._errors)
        if self._wire is not self._flat:
            self._wire.copy_(self._flat)
        return (self._wire,)

    def _add_errors(self, errors: torch.Tensor) -> None:
        """Send what was lost before, and keep what is lost now."""
        own = self._flat[: self._end]
        errors += own
        if self.quantised:
            own.copy_(errors)
            adapter.round_to_quantised(own, self.quantised)
        else:
            own.copy_(errors.to(self._wire.dtype))
        errors -= own
        # A gradient that is infinite, or too large for 16 bits, makes this step one that the program leaves out; what
        # is kept of it would spoil all the others.
        if not errors.sum().isfinite():
            errors.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def version(self) -> int:  # noqa: D102
        return int(self._flat._version)

    def sums(self) -> tuple[Any, ...]:  # noqa: D102
        return () if self._twin is None else (self._twin,)

    def keep_inputs(self) -> None:  # noqa: D102
        if self.on_gpu:
            return
        try:
            self._twin = registered_zeros(len(self._wire), self._wire.dtype, self.device)
        except (RuntimeError, MemoryError):  # torch's, ringcore's, Python's
            self.is_short = True
        if self.flags_apart:
            self._flag_sums = new_flags(self.parameters)

    def stop_keeping(self) -> None:  # noqa: D102
        self._twin = self._flag_sums = None

    def land(self) -> None:  # noqa: D102
        if self._flag_sums is not None:
            self.flags.copy_(self._flag_sums)
        if self._wire is not self._flat:
            self._flat.copy_(self._wire if self._twin is None else self._twin)
        elif self._twin is not None:
            # The two take turns: nothing is copied.
            self._flat, self._twin = self._twin, self._flat
            self._wire = self._flat
            self._look()
            for parameter, view in zip(self.parameters, self._views, strict=True):
                if parameter.grad is not None and not parameter.grad.is_sparse:
                    parameter.grad = view

    def result(self, index: int) -> torch.Tensor:  # noqa: D102
        return self._views[index]


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    if source.is_cpu and torch.get_num_threads() == 1 and source.stride() == target.stride():
        with contextlib.suppress(adapter.UnsupportedArray):
            return adapter.copy(source, target)
    target.copy_(source)  # with all threads
    return None
