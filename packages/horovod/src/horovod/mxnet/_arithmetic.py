"""Horovod's arithmetic of integers: scaled in float64 and cut towards zero, averages as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ringcore import ProcessSet
from ringcore.adapter import ReduceOp
from ringcore_mxnet import Average, Sum


def op_of(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """The operation by either of the arguments that name it."""
    if average is not None and op is not None:
        raise ValueError("average= and op= say the same; pass op=")
    if op is not None:
        return op
    return Sum if average is False else Average


def reduced(
    verb: Callable[..., Sequence[Any]],
    tensors: Sequence[Any],
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Sequence[Any]:
    """A reduction of arrays; where integers among them are to be scaled, that is done before and after it.

    Args:
        verb: Takes the arrays, and `op`, `prescale_factor` and `postscale_factor`.
        tensors: The arrays.
        op: How they are reduced.
        prescale: Factor of the arrays.
        postscale: Factor of the results.
        process_set: The ranks that take part.
    """
    is_scaled = op is Average or prescale != 1.0 or postscale != 1.0
    if not is_scaled or not any(_is_integer(tensor) for tensor in tensors):
        return verb(tensors, op=op, prescale_factor=prescale, postscale_factor=postscale)
    if op is Average:
        op, postscale = Sum, postscale / process_set.size()
    results = verb([_scaled(tensor, prescale) for tensor in tensors], op=op)
    return [_scaled(result, postscale) for result in results]


def written_to(tensors: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
    """The arrays, with results that are not in them yet."""
    for tensor, result in zip(tensors, results, strict=True):
        if result is not tensor:
            result.copyto(tensor)
    return tensors


def _is_integer(tensor: Any) -> bool:
    return np.issubdtype(getattr(tensor, "dtype", None), np.integer)


def _scaled(tensor: Any, factor: float) -> Any:
    if factor == 1.0:
        return tensor
    wide = np.float64 if _is_integer(tensor) else np.promote_types(tensor.dtype, np.float32)
    return (tensor.astype(wide) * factor).astype(tensor.dtype)
