"""Tapes and optimizers, with Horovod's signatures."""

from __future__ import annotations

from typing import Any

import ringcore_keras
import ringcore_tensorflow as ring
from ringcore.adapter import ReduceOp

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.keras.optimizer import number_of, options_of
from horovod.tensorflow.compression import Compression

__all__ = ["DistributedGradientTape", "DistributedOptimizer", "PartialDistributedGradientTape"]


def DistributedGradientTape(  # noqa: N802 - Horovod's name for it
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = ring.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """`ringcore_tensorflow.DistributedGradientTape`."""
    del device_dense, device_sparse
    return ring.DistributedGradientTape(
        gradtape, op=op, compression=compression, gradient_predivide_factor=gradient_predivide_factor,
        groups=number_of(groups, num_groups), sparse_as_dense=sparse_as_dense,
        scale_local_gradients=scale_local_gradients, process_set=process_set,
    )  # fmt: skip


def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name for it
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = ring.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`ringcore_tensorflow.PartialDistributedGradientTape`."""
    del device_dense, device_sparse
    return ring.PartialDistributedGradientTape(
        gradtape, local_layers, op=op, compression=compression, gradient_predivide_factor=gradient_predivide_factor,
        groups=number_of(groups, num_groups), sparse_as_dense=sparse_as_dense,
        scale_local_gradients=scale_local_gradients, process_set=process_set,
    )  # fmt: skip


def DistributedOptimizer(  # noqa: N802 - Horovod's name for it
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = ring.Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """`ringcore_keras.DistributedOptimizer`, of an optimizer of Keras 3.

    Raises:
        InvalidArgument: The optimizer is of TensorFlow 1 or of Keras 2; the message gives the line to write.
    """
    del name, use_locking, device_dense, device_sparse, scale_local_gradients
    options = options_of(
        optimizer, compression, sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step,
        average_aggregated_gradients, num_groups, groups, process_set,
    )  # fmt: skip
    return ringcore_keras.DistributedOptimizer(optimizer, **options)
