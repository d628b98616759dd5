"""Gradients that are rounded before they are sent, with what was lost added to the next ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcore import _native
from ringcore._errors import InvalidArgument
from ringcore.adapter import bfloat16
from ringcore.adapter.exchange import Exchange, are_finite, mean
from ringcore.adapter.gradients import SMALL_BYTES
from ringcore.job.process_sets import ProcessSet

if TYPE_CHECKING:
    from ringcore.adapter.exchange import Array, Arrays

_QUANTISED: dict[str, int] = dict(_native.COMPRESSIONS)
KINDS = ("fp16", "bf16", "int8", "int4")


class ErrorFeedback(Exchange):
    """Sends values as 16-bit floats, or between hosts as integers in blocks with a scale each (Seide et al. 2014).

    Gradients below 32 KiB are sent as they are.

    Args:
        kind: Of `KINDS`.
        warmup_steps: See `Exchange`.
    """

    def __init__(self, kind: str = "int8", warmup_steps: int = 0) -> None:
        if kind not in KINDS:
            raise InvalidArgument(f"error_feedback: what is sent is one of {', '.join(KINDS)}, not {kind!r}")
        super().__init__(warmup_steps)
        self.kind = kind

    def shrinks(self, gradient: Array) -> bool:  # noqa: D102
        return bool(gradient.nbytes >= SMALL_BYTES)

    def exchange(self, gradients: Arrays, name: str, process_set: ProcessSet, *, keeps: bool) -> None:  # noqa: D102
        import numpy as np

        lost: Arrays = {}
        sent: Arrays = {}
        with np.errstate(invalid="ignore", over="ignore"):  # of a step that is left out
            for each, gradient in gradients.items():
                if each in self.errors:
                    np.add(gradient, self.errors[each], out=gradient)
                lost[each] = gradient.copy()
                if self.kind in _QUANTISED:
                    _native.round_to_quantised(gradient, _QUANTISED[self.kind])
                elif self.kind == "bf16":
                    sent[each] = bfloat16.bits_of(gradient)
                    gradient[...] = bfloat16.values_of(sent[each], gradient.dtype)
                else:
                    sent[each] = gradient.astype(np.float16)
                    gradient[...] = sent[each]
                lost[each] -= gradient
            if self.kind in _QUANTISED:
                mean(list(gradients.values()), name, process_set, compression=_QUANTISED[self.kind])
            elif self.kind == "bf16":
                mean([bfloat16.buffer_of(bits) for bits in sent.values()], name, process_set)
            else:
                mean(list(sent.values()), name, process_set)
            for each, average in sent.items():
                is_bits = self.kind == "bf16"
                gradients[each][...] = bfloat16.values_of(average, gradients[each].dtype) if is_bits else average
        if keeps and are_finite(gradients.values()):
            self.errors.update(lost)
