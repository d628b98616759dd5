"""How a DistributedOptimizer may send gradients, of which `RINGCORE_AUTOTUNE` tries which is the quickest."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import torch
from ringcore import adapter
from ringcore.adapter import ProcessSet, name_or_next

from ringcore_torch.buckets import Groups, deal

_log = logging.getLogger("ringcore")
_FACTORS = (1, 1 / 4, 4, 16)  # of the usual size of a bucket, which comes first


@dataclasses.dataclass(frozen=True)
class Sending:
    """A way to send gradients.

    Attributes:
        bucket_bytes: A bucket is closed when it has so many.
        overlaps: A bucket is sent when its last gradient is there, else when backward is done.
    """

    bucket_bytes: int
    overlaps: bool

    def __str__(self) -> str:
        return f"buckets of {self.bucket_bytes} bytes {'beside' if self.overlaps else 'behind'} backward"


def ways(parameters: list[torch.Tensor], groups: Groups, usual: Sending) -> list[Sending]:
    """What differs for these parameters; first what is done without trials."""
    found: dict[tuple[int, ...], int] = {}
    for factor in _FACTORS:
        size = int(usual.bucket_bytes * factor)
        found.setdefault(tuple(map(len, deal(parameters, groups, size))), size)
    on_gpu = any(parameter.is_cuda for parameter in parameters)
    moments = [True] if on_gpu else [usual.overlaps, not usual.overlaps]
    return [Sending(size, overlaps) for overlaps in moments for size in found.values()]


def tuner_of(
    optimizer: Any, parameters: list[torch.Tensor], usual: Sending, *, groups: Groups, keeps_errors: bool,
    process_set: ProcessSet,
) -> adapter.Tuner[Sending] | None:  # fmt: skip
    """What tries these ways behind each step of the optimizer, by its `send`; None where there is nothing to try."""
    if not process_set.included() or process_set.size() == 1:
        return None
    tried = ways(parameters, groups, usual)
    if keeps_errors or len(tried) == 1:
        why = "error_feedback keeps what is lost by the bucket" if keeps_errors else "there is one way to send these"
        _log.info("RINGCORE_AUTOTUNE does nothing for a DistributedOptimizer: %s", why)
        return None
    kinds = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
    count = sum(parameter.numel() for parameter in parameters)
    shape = f"torch: {len(parameters)} tensors, {count} parameters of {'+'.join(kinds)}, usually {usual}"
    name = name_or_next(None, "sending", process_set)
    return adapter.Tuner(name, tried, optimizer.send, process_set=process_set, shape=shape)
