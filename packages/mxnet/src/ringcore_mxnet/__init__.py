"""ringcore for MXNet: data-parallel training with three changed lines.

import ringcore_mxnet as ring

ring.init()
ring.broadcast_parameters(net.collect_params(), root_rank=0)
trainer = ring.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
"""

from __future__ import annotations

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
from ringcore import adapter as _adapter
from ringcore.adapter import as_ringcore_error

from ringcore_mxnet._compatibility import prepare_import as _prepare_import

_adapter.require_same_version("ringcore-mxnet")
_prepare_import()

from ringcore_mxnet import elastic as elastic
from ringcore_mxnet._operations import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    gather,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    join,
    reduce,
    reducescatter,
    scatter,
)
from ringcore_mxnet.asynchronous import AsyncRing, AsyncTrainer
from ringcore_mxnet.compression import Compression
from ringcore_mxnet.kvstore import Ring
from ringcore_mxnet.local import DiLoCoTrainer, LocalSGDTrainer
from ringcore_mxnet.optimizer import DistributedOptimizer
from ringcore_mxnet.parameters import broadcast_parameters
from ringcore_mxnet.served import ServedRing
from ringcore_mxnet.sync_batch_norm import SyncBatchNorm
from ringcore_mxnet.trainer import DistributedTrainer

__all__ = [
    "Adasum",
    "AsyncRing",
    "AsyncTrainer",
    "Average",
    "Compression",
    "DiLoCoTrainer",
    "DistributedOptimizer",
    "DistributedTrainer",
    "LocalSGDTrainer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Ring",
    "ServedRing",
    "Sum",
    "SyncBatchNorm",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "as_ringcore_error",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "gather",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "on_membership_change",
    "rank",
    "reduce",
    "reducescatter",
    "remove_process_set",
    "scatter",
    "shutdown",
    "size",
    "start_timeline",
    "statistics",
    "stop_timeline",
]
