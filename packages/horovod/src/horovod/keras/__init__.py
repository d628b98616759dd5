"""`import horovod.keras as hvd`: Horovod's interface for Keras, which is Keras 3."""

from __future__ import annotations

from ringcore.adapter import import_framework as _import_framework

_import_framework("ringcore_keras", "horovod.keras", {"ringcore_keras": "'ringcore-horovod[keras]'"})

from typing import Any

import ringcore_keras
from ringcore import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from ringcore_keras import Compression

from horovod.common.basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from horovod.common.basics import init as _init
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.common.timeline import start_timeline, stop_timeline
from horovod.keras import callbacks, elastic, keras_2
from horovod.keras.operations import allgather, allreduce, broadcast, reducescatter
from horovod.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def init(comm: Any = None, process_sets: Any = None) -> None:
    """`horovod.init`; progress bars are drawn by rank 0 only, and Keras 3 takes lines of Keras 2, see `keras_2`."""
    keras_2.install()
    _init(comm, process_sets)
    ringcore_keras.init()


def broadcast_global_variables(root_rank: int) -> None:
    """Keras 3 has no global variables.

    Raises:
        RuntimeError: Always; it gives the line to write.
    """
    raise RuntimeError(
        "Keras 3 keeps no list of all variables. Remedy: the callback "
        f"hvd.callbacks.BroadcastGlobalVariablesCallback({root_rank}), or "
        f"ringcore_keras.broadcast_global_variables(model, {root_rank})"
    )


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """`ringcore_keras.load_model`.

    Raises:
        ValueError: `legacy_opts`: Keras 3 has no legacy optimizers.
    """
    if legacy_opts:
        raise ValueError("Keras 3 has no legacy optimizers; leave legacy_opts out")
    return ringcore_keras.load_model(filepath, custom_optimizers, custom_objects, compression=compression)
