"""Tensors of which each rank has some rows, such as gradients of embeddings: only these are sent.

TensorFlow takes the checks alone: its rows are gathered by ops of a graph, which is made before it is known how many
ranks run it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringcore._errors import InvalidArgument
from ringcore._native import Handle
from ringcore.adapter.collectives import ReduceOp, check_op, name_or_next
from ringcore.adapter.framework import Tensor
from ringcore.job.process_sets import ProcessSet

# Makes the result of the rows of all ranks: of their indices, of their values in the same order, and of what the sums
# are multiplied with.
Combine = Callable[[Tensor, Tensor, float], Any]


def check_rows(what: str, dtype: str, op: ReduceOp, factor: float = 1.0) -> None:
    """What every reduction of rows asks of its arguments.

    Args:
        what: The function and its tensor, for the message.
        dtype: Name of the values' dtype.
        op: How rows of the same index become one.
        factor: Multiplied into the result.

    Raises:
        InvalidArgument: Another `op` than `AVERAGE` and `SUM`, or an average or a factor of integers.
    """
    check_op(op)
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise InvalidArgument(f"{what} takes op=Average or op=Sum, not {op.name}")
    if "float" not in dtype and (op is ReduceOp.AVERAGE or factor != 1.0):
        raise InvalidArgument(f"{what} of {dtype} takes op=Sum and no factors; convert it to a float dtype")


def start_allreduce_of_rows(
    gather: Callable[..., Handle],
    indices: Tensor,
    values: Tensor,
    combine: Combine[Tensor],
    *,
    op: ReduceOp,
    name: str | None,
    kind: str = "sparse_allreduce",
    factor: float = 1.0,
    process_set: ProcessSet,
) -> Callable[[], Any]:
    """Start adding up the rows of all ranks: two allgathers that are one operation.

    Args:
        gather: The framework's `grouped_allgather_async`.
        indices: Of this rank's rows, in the tensor's first dimension.
        values: The rows, as many, in the same order. Any number of them, also none.
        combine: Adds up the rows of the same index. They come by rank, and it has to add them in one order on every
            rank, so that the sums are the same bits.
        op: `AVERAGE` or `SUM`, see `check_rows`.
        name: Identifies the tensor on all ranks.
        kind: Names it where the user does not.
        factor: Multiplied into the result.
        process_set: The ranks that take part.

    Returns:
        A function that waits and returns what `combine` makes.
    """
    base = name_or_next(name, kind, process_set)
    handle = gather([indices, values], name=f"{base}.rows", process_set=process_set)
    scale = factor / process_set.size() if op is ReduceOp.AVERAGE else factor

    def finish() -> Any:
        rows, sent = handle.synchronize()
        return combine(rows, sent, scale)

    return finish
