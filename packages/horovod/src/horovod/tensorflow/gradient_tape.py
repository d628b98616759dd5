"""Tapes and optimizers, with Horovod's signatures."""

from __future__ import annotations

from typing import Any

import ringcore_tensorflow as ring
import tensorflow as tf
from ringcore import InvalidArgument
from ringcore.adapter import ReduceOp

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.keras import optimizer as of_keras
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.reduction import DistributedTape, MembersReduction, SessionOptimizer

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
    """`ringcore_tensorflow.DistributedGradientTape`; ranks outside of the process set keep their own gradients."""
    del device_dense, device_sparse
    reduction = MembersReduction(
        op=op, compression=compression, gradient_predivide_factor=gradient_predivide_factor,
        groups=of_keras.number_of(groups, num_groups), sparse_as_dense=sparse_as_dense, process_set=process_set,
    )  # fmt: skip
    return DistributedTape(gradtape, reduction, scale_local_gradients)


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
    """`ringcore_tensorflow.PartialDistributedGradientTape`; see `DistributedGradientTape`."""
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups,
        groups, process_set, scale_local_gradients,
    )  # fmt: skip
    tape.register_local_layers(local_layers)
    return tape


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
    """`horovod.keras.DistributedOptimizer`; optimizers of TensorFlow 1 work as well.

    Raises:
        InvalidArgument: The optimizer is of Keras 2, or one of TensorFlow 1 that is to add gradients up; the message
            gives the line to write.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return of_keras.DistributedOptimizer(
            optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
            backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set,
            scale_local_gradients,
        )  # fmt: skip
    if backward_passes_per_step > 1:
        raise InvalidArgument(
            f"backward_passes_per_step={backward_passes_per_step}: optimizers of TensorFlow 1 step in each pass here. "
            "Write: hvd.DistributedOptimizer(keras.optimizers.SGD(...), backward_passes_per_step=...)"
        )
    reduction = MembersReduction(
        op=op, compression=compression, gradient_predivide_factor=gradient_predivide_factor,
        groups=of_keras.number_of(groups, num_groups), sparse_as_dense=sparse_as_dense, process_set=process_set,
    )  # fmt: skip
    return SessionOptimizer(optimizer, name, use_locking, reduction, scale_local_gradients)
