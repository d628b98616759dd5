"""What torch.distributed calls a reduction, and what the engine does for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ringcore.adapter import ReduceOp as RingReduceOp

Tensor = torch.Tensor

OPS = {
    dist.ReduceOp.SUM: RingReduceOp.SUM,
    dist.ReduceOp.AVG: RingReduceOp.AVERAGE,
    dist.ReduceOp.PRODUCT: RingReduceOp.PRODUCT,
    dist.ReduceOp.MIN: RingReduceOp.MIN,
    dist.ReduceOp.MAX: RingReduceOp.MAX,
    dist.ReduceOp.PREMUL_SUM: RingReduceOp.SUM,
}
BITWISE: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


def reduce_op(options: Any) -> tuple[Any, Any]:
    """The operation, and what the tensors are multiplied with before it."""
    if options is None:
        return dist.ReduceOp.SUM, 1.0
    op = options.reduceOp
    if op == dist.ReduceOp.PREMUL_SUM:
        return dist.ReduceOp.PREMUL_SUM, op.__getstate__()[1]
    return next((known for known in (*OPS, *BITWISE) if op == known), op), 1.0


def scaled(tensor: Tensor, factor: Any) -> Tensor:
    """The tensor multiplied with a factor that is a tensor too; the engine does it with a number."""
    return tensor * factor if isinstance(factor, Tensor) else tensor
