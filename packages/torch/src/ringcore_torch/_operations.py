"""The verbs on tensors, without gradients. Non-contiguous tensors work, by way of a contiguous copy."""

from __future__ import annotations

from collections.abc import Sequence

import ringcore
import torch
from ringcore.adapter import Handle, ProcessSet, ReduceOp, Verbs, first

from ringcore_torch._bridge import Tensors
from ringcore_torch._profiling import seen

_verbs: Verbs[torch.Tensor] = Verbs(Tensors(), torch.Tensor.is_neg)

allreduce = seen(_verbs.allreduce)
allreduce_ = seen(_verbs.allreduce_)
allreduce_async = seen(_verbs.allreduce_async)
allreduce_async_ = seen(_verbs.allreduce_async_)
grouped_allreduce = seen(_verbs.grouped_allreduce)
grouped_allreduce_ = seen(_verbs.grouped_allreduce_)
grouped_allreduce_async = seen(_verbs.grouped_allreduce_async)
grouped_allreduce_async_ = seen(_verbs.grouped_allreduce_async_)
allgather = seen(_verbs.allgather)
allgather_async = seen(_verbs.allgather_async)
grouped_allgather = seen(_verbs.grouped_allgather)
grouped_allgather_async = seen(_verbs.grouped_allgather_async)
broadcast = seen(_verbs.broadcast)
broadcast_ = seen(_verbs.broadcast_)
broadcast_async = seen(_verbs.broadcast_async)
broadcast_async_ = seen(_verbs.broadcast_async_)
reduce = seen(_verbs.reduce)
reduce_async = seen(_verbs.reduce_async)
gather = seen(_verbs.gather)
gather_async = seen(_verbs.gather_async)
scatter = seen(_verbs.scatter)
scatter_async = seen(_verbs.scatter_async)
reducescatter = seen(_verbs.reducescatter)
reducescatter_async = seen(_verbs.reducescatter_async)
grouped_reducescatter = seen(_verbs.grouped_reducescatter)
grouped_reducescatter_async = seen(_verbs.grouped_reducescatter_async)
alltoall = seen(_verbs.alltoall)
alltoall_async = seen(_verbs.alltoall_async)
barrier = seen(_verbs.barrier)
join = seen(_verbs.join)
synchronize = seen(ringcore.synchronize)


def start_allreduce(
    tensors: Sequence[torch.Tensor],
    code: int,
    *,
    name: str,
    op: ReduceOp = ringcore.Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = ringcore.global_process_set,
    blocking: bool = False,
    priority: int = 0,
    in_place: bool = False,
) -> Handle:
    """`grouped_allreduce_async` of what may be quantised between hosts; one tensor goes alone."""
    return _verbs.start_allreduce(
        tuple(tensors), name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        process_set=process_set, blocking=blocking, compression=code, priority=priority, in_place=in_place,
    )  # fmt: skip


def start_allgather(
    tensor: torch.Tensor, *, name: str, process_set: ProcessSet, out: torch.Tensor | None, priority: int
) -> Handle:  # fmt: skip
    """`allgather_async` with a priority: the larger, the sooner."""
    return _verbs.start_allgather(
        (tensor,), name, process_set=process_set, priority=priority, finish=first,
        out=None if out is None else (out,),
    )  # fmt: skip
