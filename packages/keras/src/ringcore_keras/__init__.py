"""ringcore for Keras 3, on TensorFlow, JAX and PyTorch: data-parallel training with three changed lines.

import ringcore_keras as ring

ring.init()
model.compile(optimizer=ring.DistributedOptimizer(optimizer), ...)
model.fit(..., callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from __future__ import annotations

from importlib.util import find_spec as _find_spec

from ringcore import adapter as _adapter

_BACKENDS = ("tensorflow", "jax", "torch")


def _remedy_without(backend: str) -> str:
    """Keras takes TensorFlow where nobody chooses, and whoever has another backend need only say so."""
    remedy = f"'ringcore-keras[{backend}]'"
    for other in _BACKENDS:
        if other != backend and _find_spec(other) is not None:
            adapter = "" if _find_spec(f"ringcore_{other}") is not None else f"pip install ringcore-{other}, and "
            return f"{remedy}; or, as {other} is installed: {adapter}set KERAS_BACKEND={other}"
    return remedy


_adapter.require_same_version("ringcore-keras")
_adapter.import_framework(
    "keras", "ringcore-keras", {"keras": "keras", **{backend: _remedy_without(backend) for backend in _BACKENDS}}
)

from typing import Any

import keras
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
    allgather,
    allgather_async,
    allgather_object,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    broadcast_object,
    cross_rank,
    cross_size,
    gather,
    gather_async,
    global_process_set,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    on_membership_change,
    poll,
    rank,
    reduce,
    reduce_async,
    reducescatter,
    reducescatter_async,
    remove_process_set,
    scatter,
    scatter_async,
    shutdown,
    size,
    start_timeline,
    statistics,
    stop_timeline,
    synchronize,
)
from ringcore import init as _init

from ringcore_keras import callbacks
from ringcore_keras import elastic as elastic
from ringcore_keras.asynchronous import AsyncOptimizer
from ringcore_keras.data import shard
from ringcore_keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer, is_distributed
from ringcore_keras.options import Compression
from ringcore_keras.saving import load_model
from ringcore_keras.sharded import ShardedOptimizer
from ringcore_keras.sync_batch_normalization import SyncBatchNormalization
from ringcore_keras.variables import broadcast_global_variables, broadcast_variables

__all__ = [
    "Adasum",
    "AsyncOptimizer",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "ShardedOptimizer",
    "Sum",
    "SyncBatchNormalization",
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
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
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
    "is_distributed",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
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
    "shard",
    "shutdown",
    "size",
    "start_timeline",
    "statistics",
    "stop_timeline",
    "synchronize",
]


def init(comm: Any = None, **options: Any) -> None:
    """`ringcore.init`; and progress bars are drawn by rank 0 only.

    Args:
        comm: A communicator of mpi4py; see `ringcore.init`.
        options: Of `ringcore.init`.
    """
    _init(comm, **options)
    if rank() > 0:
        keras.utils.disable_interactive_logging()
