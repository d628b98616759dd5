"""`import horovod.keras as hvd`: Horovod's interface for Keras, which is Keras 3."""

from __future__ import annotations

from typing import Any

import numpy as np
import ringcore
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
    start_timeline,
    stop_timeline,
)
from ringcore.adapter import ReduceOp
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
from horovod.keras import callbacks, elastic
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
    """`horovod.init`; and progress bars are drawn by rank 0 only."""
    _init(comm, process_sets)
    ringcore_keras.init()


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce numbers over all ranks; returns a numpy array."""
    del compression  # a few numbers
    if average is not None and op is not None:
        raise ValueError("pass either op or average, which is an old name for op=Average and op=Sum")
    chosen = op if op is not None else Average if average in (None, True) else Sum
    return ringcore.allreduce(
        np.array(value, order="C"), op=chosen, name=name, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )  # fmt: skip


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenate every rank's rows; returns a numpy array."""
    return ringcore.allgather(np.array(value, order="C"), name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's numbers; returns a numpy array."""
    return ringcore.broadcast(np.array(value, order="C"), root_rank, name=name)


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> Any:
    """Reduce over all ranks; each gets its share of the rows, as a numpy array."""
    return ringcore.reducescatter(np.array(value, order="C"), op=op, name=name)


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
