"""ringcore for TensorFlow: data-parallel training with three changed lines.

import ringcore_tensorflow as ring

ring.init()
tape = ring.DistributedGradientTape(tape)
ring.broadcast_variables(model.variables, root_rank=0)
"""

from __future__ import annotations

from ringcore import adapter as _adapter

_adapter.require_same_version("ringcore-tensorflow")
_adapter.import_framework(
    "tensorflow", "ringcore-tensorflow", {"tensorflow": "'ringcore-tensorflow[tensorflow]' (or [cpu])"}
)

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
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    statistics,
    stop_timeline,
)
from ringcore.adapter import as_ringcore_error

from ringcore_tensorflow import elastic as elastic
from ringcore_tensorflow._operations import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    gather,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reduce,
    reducescatter,
    scatter,
    size_op,
)
from ringcore_tensorflow.asynchronous import AsyncOptimizer
from ringcore_tensorflow.compression import Compression
from ringcore_tensorflow.gradient_aggregator import GradientAggregator
from ringcore_tensorflow.gradient_tape import DistributedGradientTape, PartialDistributedGradientTape
from ringcore_tensorflow.sync_batch_normalization import SyncBatchNormalization
from ringcore_tensorflow.variables import broadcast_variables

__all__ = [
    "Adasum",
    "AsyncOptimizer",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "GradientAggregator",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "as_ringcore_error",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_variables",
    "cross_rank",
    "cross_size",
    "gather",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "on_membership_change",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reduce",
    "reducescatter",
    "remove_process_set",
    "scatter",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "statistics",
    "stop_timeline",
]
