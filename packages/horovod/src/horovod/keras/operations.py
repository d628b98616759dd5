"""Horovod's operations on numbers; what they return is a tensor of Keras' backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import ringcore
from ringcore import Average, Sum
from ringcore.adapter import ReduceOp
from ringcore_keras import Compression

from horovod.common.operations import chosen_op

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


def _scaled(array: Any, factor: float) -> Any:
    """An integer array times a factor, cut towards zero."""
    return array if factor == 1.0 else (array * np.float64(factor)).astype(array.dtype)


def _reduced(
    call: Callable[..., Any], value: Any, op: ReduceOp, name: str | None, prescale: float = 1.0, postscale: float = 1.0
) -> Any:
    array = np.array(value, order="C")
    if array.dtype.kind not in "iu":
        result = call(array, op=op, name=name, prescale_factor=prescale, postscale_factor=postscale)
    else:
        if op is Average:
            op, postscale = Sum, postscale / ringcore.size()
        result = _scaled(call(_scaled(array, prescale), op=op, name=name), postscale)
    return keras.ops.convert_to_tensor(result)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce numbers over all ranks."""
    del compression  # a few numbers
    return _reduced(ringcore.allreduce, value, chosen_op(op, average), name, prescale_factor, postscale_factor)


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenate every rank's rows."""
    return keras.ops.convert_to_tensor(ringcore.allgather(np.array(value, order="C"), name=name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's numbers."""
    return keras.ops.convert_to_tensor(ringcore.broadcast(np.array(value, order="C"), root_rank, name=name))


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> Any:
    """Reduce over all ranks; each gets its share of the rows."""
    return _reduced(ringcore.reducescatter, value, op, name)
