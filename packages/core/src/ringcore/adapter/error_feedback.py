"""Gradients that are rounded before they are sent, with what was lost added to the next ones."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from ringcore import _native
from ringcore._errors import InvalidArgument
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
        if kind == "bf16" and importlib.util.find_spec("ml_dtypes") is None:
            raise InvalidArgument('error_feedback("bf16") needs the package ml_dtypes. Remedy: pip install ml_dtypes')
        super().__init__(warmup_steps)
        self.kind = kind

    def shrinks(self, gradient: Array) -> bool:  # noqa: D102
        return bool(gradient.nbytes >= SMALL_BYTES)

    def exchange(self, gradients: Arrays, name: str, process_set: ProcessSet, *, keeps: bool) -> None:  # noqa: D102
        import numpy as np

        lost: Arrays = {}
        with np.errstate(invalid="ignore", over="ignore"):  # of a step that is left out
            for each, gradient in gradients.items():
                if each in self.errors:
                    np.add(gradient, self.errors[each], out=gradient)
                lost[each] = gradient.copy()
                if self.kind in _QUANTISED:
                    _native.round_to_quantised(gradient, _QUANTISED[self.kind])
                else:
                    gradient[...] = gradient.astype(self._wire_dtype())
                lost[each] -= gradient
            if self.kind in _QUANTISED:
                mean(list(gradients.values()), name, process_set, compression=_QUANTISED[self.kind])
            else:
                sent = {each: gradient.astype(self._wire_dtype()) for each, gradient in gradients.items()}
                mean(list(sent.values()), name, process_set)
                for each, gradient in gradients.items():
                    gradient[...] = sent[each]
        if keeps and are_finite(gradients.values()):
            self.errors.update(lost)

    def _wire_dtype(self) -> Any:
        if self.kind == "fp16":
            return "float16"
        import ml_dtypes

        return ml_dtypes.bfloat16
