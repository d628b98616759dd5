"""How a DistributedOptimizer may send gradients, of which `RINGCORE_AUTOTUNE` tries which is the quickest."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from ringcore import adapter
from ringcore.adapter import ProcessSet, name_or_next

from ringcore_torch.buckets import Groups, deal

_FACTORS = (1, 1 / 4, 4, 16)  # of the usual size of a bucket, which comes first
_USUALLY_AT_ONCE = 2  # operations without a priority have two lanes, and each has one at a time


@dataclasses.dataclass(frozen=True)
class Sending:
    """A way to send gradients.

    Attributes:
        bucket_bytes: A bucket is closed when it has so many.
        overlaps: A bucket is sent when its last gradient is there, else when backward is done.
        at_once: While buckets wait for data of other ranks further ones begin; else two are under way at a time.
    """

    bucket_bytes: int
    overlaps: bool
    at_once: bool = False

    def __str__(self) -> str:
        moment = "beside" if self.overlaps else "behind"
        return f"buckets of {self.bucket_bytes} bytes {moment} backward{', at once' if self.at_once else ''}"


def ways(
    parameters: list[torch.Tensor], groups: Groups, usual: Sending, *, over_tcp: bool, has_order: bool
) -> list[Sending]:
    """What differs for these parameters; first what is done without trials.

    Args:
        parameters: In their order.
        groups: Those that are sent together.
        usual: What is done without trials.
        over_tcp: Ranks send over a network: there a bucket waits for others most of its time.
        has_order: Buckets have priorities in any way.
    """
    found: dict[tuple[int, ...], int] = {}
    for factor in _FACTORS:
        size = int(usual.bucket_bytes * factor)
        found.setdefault(tuple(map(len, deal(parameters, groups, size))), size)
    if any(parameter.is_cuda for parameter in parameters):
        return [Sending(size, True) for size in found.values()]
    if not over_tcp:
        return [Sending(size, overlaps) for overlaps in (usual.overlaps, not usual.overlaps) for size in found.values()]
    tried = [Sending(size, usual.overlaps) for size in found.values()]
    if not has_order:
        several = [size for dealt, size in found.items() if len(dealt) > _USUALLY_AT_ONCE]
        tried += [Sending(size, True, at_once=True) for size in several]
    # Beside backward a network costs it little: behind it the largest buckets, of which there are few, gain the most.
    tried.append(Sending(max(found.values()), not usual.overlaps))
    return tried


def tuner_of(
    optimizer: Any, parameters: list[torch.Tensor], usual: Sending, *, groups: Groups, keeps_errors: bool,
    has_order: bool, process_set: ProcessSet,
) -> adapter.Tuner[Sending] | None:  # fmt: skip
    """What tries these ways behind each step of the optimizer, by its `send`; None where there is nothing to try."""
    if not process_set.included() or process_set.size() == 1:
        return None
    over_tcp = not {"tcp", "tls"}.isdisjoint(adapter.context().runtime.transports())
    tried = ways(parameters, groups, usual, over_tcp=over_tcp, has_order=has_order)
    if keeps_errors or len(tried) == 1:
        why = "error_feedback keeps what is lost by the bucket" if keeps_errors else "there is one way to send these"
        adapter.tell_untuned("a DistributedOptimizer", why)
        return None
    kinds = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
    count = sum(parameter.numel() for parameter in parameters)
    shape = f"torch: {len(parameters)} tensors, {count} parameters of {'+'.join(kinds)}, usually {usual}"
    name = name_or_next(None, "sending", process_set)
    return adapter.Tuner(name, tried, optimizer.send, process_set=process_set, shape=shape)
