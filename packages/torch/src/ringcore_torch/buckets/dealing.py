"""Which parameters go to which bucket.

They are dealt in the reverse of their order, which is about the order in which backward finishes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from ringcore import adapter

from ringcore_torch.buckets.bucket import Bucket
from ringcore_torch.buckets.flat import FlatBucket
from ringcore_torch.buckets.packed import PackedBucket
from ringcore_torch.compression import Compressor

# How gradients are sent together, see `DistributedOptimizer`.
Groups = int | Sequence[Sequence[torch.Tensor]] | None

# The first bucket is small, so that communication starts early; the figures are those of DistributedDataParallel.
_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20
# What is sent behind backward, when the last gradient is there, is no more than such a part of all.
_LAST_PART = 8
# Where each bucket is waited for by itself, as large as what may be overtaken.
SOONER_BUCKET_BYTES = 4 << 20
_MOST_PACKED = 2000  # a group is described in one record


def usual_bucket_bytes(parameters: Sequence[torch.Tensor]) -> int:
    """When a bucket is closed, if nobody says otherwise: the same wherever the same model is trained.

    On GPUs, where each bucket costs launches, it does not depend on the model.
    """
    if any(parameter.is_cuda for parameter in parameters):
        return _BUCKET_BYTES
    return min(max(_bytes(parameters) // _LAST_PART, _FIRST_BUCKET_BYTES), _BUCKET_BYTES)


def make_buckets(
    named: list[tuple[str, torch.Tensor]], prefix: str, *, groups: Groups, compression: type[Compressor],
    bucket_bytes: int, keeps_errors: bool = False,
) -> list[Bucket]:  # fmt: skip
    """Deal parameters to buckets: those of `groups` together, the others by their size."""
    names = {id(parameter): name for name, parameter in named}
    buckets: list[Bucket] = []
    for parameters in deal([parameter for _, parameter in named], groups, bucket_bytes):
        name = f"{prefix}.bucket{len(buckets)}"
        own = [names[id(parameter)] for parameter in parameters]
        if compression.wire_dtype is None and _bytes(parameters) < adapter.SMALL_BYTES * len(parameters):
            buckets.append(PackedBucket(name, parameters, own))
        else:
            buckets.append(FlatBucket(name, parameters, own, compression, keeps_errors=keeps_errors))
    return buckets


def deal(parameters: list[torch.Tensor], groups: Groups, bucket_bytes: int) -> list[list[torch.Tensor]]:
    """The parameters of each bucket: those of `groups`, the rest by size in the reverse of their order."""
    if isinstance(groups, int):
        chosen = [[parameters[i] for i in group] for group in reversed(adapter.dealt_out(len(parameters), groups))]
    else:
        chosen = [list(group) for group in groups or []]
    dealt = [same for group in chosen for same in _by_kind(group)]
    taken = {id(parameter) for group in chosen for parameter in group}
    rest = [parameter for parameter in reversed(parameters) if id(parameter) not in taken]
    for small in (False, True):
        for same in _by_kind(p for p in rest if (_bytes([p]) < adapter.SMALL_BYTES) is small):
            limit = _FIRST_BUCKET_BYTES if small else bucket_bytes
            dealt += _fill(same, _FIRST_BUCKET_BYTES if not dealt else limit, limit, small=small)
    return dealt


def _fill(parameters: list[torch.Tensor], first: int, others: int, *, small: bool) -> Iterable[list[torch.Tensor]]:
    """Buckets that are closed as soon as they have so many bytes, `first` of the first one."""
    bucket: list[torch.Tensor] = []
    limit = first
    for parameter in parameters:
        bucket.append(parameter)
        if _bytes(bucket) >= limit or (small and len(bucket) == _MOST_PACKED):
            yield bucket
            bucket, limit = [], others
    if bucket:
        yield bucket


def _bytes(parameters: Iterable[torch.Tensor]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _by_kind(parameters: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    found: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for parameter in parameters:
        found.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return list(found.values())
