"""ringcore for JAX: data-parallel training with three changed lines.

import ringcore_jax as ring

ring.init()
params = ring.broadcast_parameters(params, root_rank=0)
optimizer = ring.DistributedOptimizer(optax.adam(1e-3))
"""

from __future__ import annotations

from ringcore import adapter as _adapter

_adapter.require_same_version("ringcore-jax")
_adapter.import_framework("jax", "ringcore-jax", dict.fromkeys(("jax", "jaxlib"), "jax"))

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
    synchronize,
)
from ringcore.adapter import Handle, as_ringcore_error

from ringcore_jax import elastic as elastic
from ringcore_jax._operations import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_async,
    gather,
    gather_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    reduce,
    reduce_async,
    reducescatter,
    reducescatter_async,
    scatter,
    scatter_async,
)
from ringcore_jax.asynchronous import AsyncOptimizer
from ringcore_jax.compression import Compression
from ringcore_jax.optimizer import DistributedOptimizer, allreduce_gradients, value_and_grad
from ringcore_jax.sharded import ShardedOptimizer, gather_state, shard_state
from ringcore_jax.state import broadcast_parameters

__all__ = [
    "Adasum",
    "AsyncOptimizer",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Handle",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ShardedOptimizer",
    "Sum",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "allreduce_gradients",
    "alltoall",
    "alltoall_async",
    "as_ringcore_error",
    "barrier",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "gather",
    "gather_async",
    "gather_state",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
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
    "shard_state",
    "shutdown",
    "size",
    "start_timeline",
    "statistics",
    "stop_timeline",
    "synchronize",
    "value_and_grad",
]
