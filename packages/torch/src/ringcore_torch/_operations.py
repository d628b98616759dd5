"""The verbs on tensors, without gradients. Non-contiguous tensors work, by way of a contiguous copy."""

from __future__ import annotations

import torch
from ringcore.adapter import Verbs

from ringcore_torch._bridge import Tensors

_verbs: Verbs[torch.Tensor] = Verbs(Tensors(), torch.Tensor.is_neg)

allreduce = _verbs.allreduce
allreduce_ = _verbs.allreduce_
allreduce_async = _verbs.allreduce_async
allreduce_async_ = _verbs.allreduce_async_
grouped_allreduce = _verbs.grouped_allreduce
grouped_allreduce_ = _verbs.grouped_allreduce_
grouped_allreduce_async = _verbs.grouped_allreduce_async
grouped_allreduce_async_ = _verbs.grouped_allreduce_async_
allgather = _verbs.allgather
allgather_async = _verbs.allgather_async
grouped_allgather = _verbs.grouped_allgather
grouped_allgather_async = _verbs.grouped_allgather_async
broadcast = _verbs.broadcast
broadcast_ = _verbs.broadcast_
broadcast_async = _verbs.broadcast_async
broadcast_async_ = _verbs.broadcast_async_
reducescatter = _verbs.reducescatter
reducescatter_async = _verbs.reducescatter_async
grouped_reducescatter = _verbs.grouped_reducescatter
grouped_reducescatter_async = _verbs.grouped_reducescatter_async
alltoall = _verbs.alltoall
alltoall_async = _verbs.alltoall_async
barrier = _verbs.barrier
join = _verbs.join
