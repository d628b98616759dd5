"""Sparse tensors: only the rows that some rank has are sent."""

from __future__ import annotations

from collections.abc import Callable

import torch
from ringcore import Average, InvalidArgument, Sum
from ringcore.adapter import ProcessSet, ReduceOp, check_rows, global_process_set, start_allreduce_of_rows

from ringcore_torch._operations import grouped_allgather_async


def sparse_allreduce_async(
    tensor: torch.Tensor,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Start the reduction of a sparse COO tensor: an allgather of indices and values.

    Args:
        tensor: In the COO layout, of the same shape and the same number of sparse dimensions on every rank. Ranks may
            have any number of values.
        op: `Average` or `Sum`.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.

    Returns:
        A function that waits and returns the coalesced result, a new tensor.

    Raises:
        InvalidArgument: Not in the COO layout, another `op`, or an average of integers.
    """
    if tensor.layout is not torch.sparse_coo:
        raise InvalidArgument(f"sparse_allreduce_async takes a tensor in the COO layout, not {tensor.layout}")
    check_rows("sparse_allreduce_async", str(tensor.dtype).removeprefix("torch."), op)
    own = tensor.detach().coalesce()

    def combine(indices: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        total = torch.sparse_coo_tensor(
            indices.t(), values, tensor.shape, device=tensor.device, check_invariants=False
        ).coalesce()
        return total if op is Sum else total * scale

    # Rows of the gathered tensors are values: indices are transposed.
    return start_allreduce_of_rows(
        grouped_allgather_async, own.indices().t().contiguous(), own.values(), combine, op=op, name=name,
        process_set=process_set,
    )  # fmt: skip
