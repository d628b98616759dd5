"""ringcore for PyTorch: data-parallel training with three changed lines.

import ringcore_torch as ring

ring.init()
optimizer = ring.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
ring.broadcast_parameters(model.state_dict(), root_rank=0)
"""

from __future__ import annotations

from ringcore import adapter as _adapter

_adapter.require_same_version("ringcore-torch")
_adapter.import_framework("torch", "ringcore-torch", {"torch": "torch"})

from ringcore import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    __version__,
    add_process_set,
    allgather_object,
    broadcast_object,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    on_membership_change,
    poll,
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    statistics,
    stop_timeline,
)
from ringcore.adapter import Handle

from ringcore_torch import elastic as elastic
from ringcore_torch._differentiable import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from ringcore_torch._operations import (
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    barrier,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    gather,
    gather_async,
    grouped_allgather_async,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    join,
    reduce,
    reduce_async,
    reducescatter_async,
    scatter,
    scatter_async,
    synchronize,
)
from ringcore_torch.asynchronous import AsyncOptimizer
from ringcore_torch.compression import Compression
from ringcore_torch.local import DiLoCo, LocalSGD
from ringcore_torch.optimizer import DistributedOptimizer
from ringcore_torch.served import ServerOptimizer
from ringcore_torch.sharded import ShardedOptimizer
from ringcore_torch.sparse import sparse_allreduce_async
from ringcore_torch.state import broadcast_optimizer_state, broadcast_parameters
from ringcore_torch.sync_batch_norm import SyncBatchNorm
from ringcore_torch.virtual import VirtualRanks

__all__ = [
    "Adasum",
    "AsyncOptimizer",
    "Average",
    "Compression",
    "DiLoCo",
    "DistributedOptimizer",
    "Handle",
    "LocalSGD",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ServerOptimizer",
    "ShardedOptimizer",
    "Sum",
    "SyncBatchNorm",
    "VirtualRanks",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "gather",
    "gather_async",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "on_membership_change",
    "poll",
    "rank",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "scatter",
    "scatter_async",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "statistics",
    "stop_timeline",
    "synchronize",
]
