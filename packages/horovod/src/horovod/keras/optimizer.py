"""Keras' optimizers, with Horovod's signatures."""

from __future__ import annotations

from typing import Any

import keras
import ringcore_keras
from ringcore import InvalidArgument, adapter
from ringcore.adapter import ReduceOp
from ringcore_keras import Average, Compression

from horovod.common.process_sets import ProcessSet, global_process_set

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer"]


def DistributedOptimizer(  # noqa: N802 - Horovod's name for it
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """`ringcore_keras.DistributedOptimizer`.

    Raises:
        InvalidArgument: The optimizer is of TensorFlow 1 or of Keras 2; the message gives the line to write.
    """
    del name, device_dense, device_sparse, scale_local_gradients
    options = options_of(
        optimizer, compression, sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step,
        average_aggregated_gradients, num_groups, groups, process_set,
    )  # fmt: skip
    wrapped = ringcore_keras.DistributedOptimizer(optimizer, **options)
    # Past Keras' __setattr__, which would take it for a variable.
    vars(wrapped)["_agg_helper"] = Passes(wrapped) if backward_passes_per_step > 1 else None
    return wrapped


class Passes:
    """How many backward passes have been added up: an attribute that Horovod's optimizer has.

    Args:
        optimizer: Which adds them up. It is not kept, as it keeps this.
    """

    def __init__(self, optimizer: Any) -> None:
        self._passes = optimizer._iterations
        self._passes_per_step = optimizer.gradient_accumulation_steps

    @property
    def counter(self) -> Any:
        """Since the last step."""
        return self._passes.value % self._passes_per_step


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name for it
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`ringcore_keras.PartialDistributedOptimizer`."""
    del name, device_dense, device_sparse
    options = options_of(
        optimizer, compression, sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step,
        average_aggregated_gradients, num_groups, groups, process_set,
    )  # fmt: skip
    return ringcore_keras.PartialDistributedOptimizer(
        optimizer, local_layers=local_layers, scale_local_gradients=scale_local_gradients, **options
    )


def options_of(
    optimizer: Any, compression: Any, sparse_as_dense: bool, gradient_predivide_factor: float, op: ReduceOp,
    backward_passes_per_step: int, average_aggregated_gradients: bool, num_groups: int, groups: Any,
    process_set: ProcessSet,
) -> dict[str, Any]:  # fmt: skip
    """Horovod's options as ringcore's.

    Raises:
        InvalidArgument: An optimizer of TensorFlow 1 or of Keras 2.
    """
    require_keras_3(optimizer)
    return {
        "op": op, "compression": name_of(compression), "backward_passes_per_step": backward_passes_per_step,
        "gradient_predivide_factor": gradient_predivide_factor, "groups": number_of(groups, num_groups),
        "sparse_as_dense": sparse_as_dense, "average_aggregated_gradients": average_aggregated_gradients,
        "process_set": process_set, "check_weights": False,  # as with Horovod, whose scripts may begin apart
    }  # fmt: skip


def number_of(groups: Any, num_groups: int) -> int | None:
    """How many operations the gradients are dealt out to. Which ones go together makes no difference to results."""
    wanted = groups if isinstance(groups, int) else num_groups if groups is None else len(groups)
    return wanted or None


def name_of(compression: Any) -> str | adapter.Exchange:
    """Of Keras' Compression, or of TensorFlow's, whose members are classes."""
    if isinstance(compression, str | adapter.Exchange):
        return compression
    if code := getattr(compression, "quantised", 0):
        return next(name for name, each in adapter.QUANTISED.items() if each == code)
    wire = getattr(compression, "wire_dtype", None)
    return {"float16": "fp16", "bfloat16": "bf16"}.get(getattr(wire, "name", ""), "none")


def require_keras_3(optimizer: Any) -> None:
    """Tell what to write where a script brings an optimizer that Keras 3 does not have.

    Raises:
        InvalidArgument: It does.
    """
    if isinstance(optimizer, keras.optimizers.Optimizer | str):
        return
    kind = type(optimizer)
    name = kind.__name__.removesuffix("Optimizer")
    line = f"keras.optimizers.{name if hasattr(keras.optimizers, name) else 'SGD'}(...)"
    if kind.__module__.startswith("tf_keras") or ".legacy" in kind.__module__:
        why = f"{kind.__name__} of {kind.__module__} is an optimizer of Keras 2"
    elif kind.__module__.startswith("tensorflow.python.training"):
        why = f"{kind.__name__} is an optimizer of TensorFlow 1"
    else:
        why = f"{kind.__name__} is no optimizer of Keras"
    raise InvalidArgument(
        f"{why}, and DistributedOptimizer works with those of Keras 3. Write: `import keras` and "
        f"hvd.DistributedOptimizer({line}); and leave TF_USE_LEGACY_KERAS unset"
    )
