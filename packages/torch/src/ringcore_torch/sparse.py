"""Sparse tensors: only the rows that some rank has are sent."""

from __future__ import annotations

from collections.abc import Callable

import torch
from ringcore import Average, InvalidArgument, Sum
from ringcore.adapter import ProcessSet, ReduceOp, global_process_set, name_or_next

from ringcore_torch._operations import allgather_async


def sparse_allreduce_async(
    tensor: torch.Tensor,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Start the reduction of a sparse COO tensor: two allgathers, of indices and of values.

    Args:
        tensor: In the COO layout, of the same shape and the same number of sparse dimensions on every rank. Ranks may
            have any number of values.
        op: `Average` or `Sum`.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.

    Returns:
        A function that waits and returns the coalesced result, a new tensor.

    Raises:
        InvalidArgument: Not in the COO layout, or another `op`.
    """
    if tensor.layout is not torch.sparse_coo:
        raise InvalidArgument(f"sparse_allreduce_async takes a tensor in the COO layout, not {tensor.layout}")
    if op not in (Average, Sum):
        raise InvalidArgument(f"sparse_allreduce_async takes op=Average or op=Sum, not {op.name}")
    base = name_or_next(name, "sparse_allreduce", process_set)
    own = tensor.detach().coalesce()
    # Rows of the gathered tensors are values: indices are transposed.
    indices = allgather_async(own.indices().t().contiguous(), name=f"{base}.indices", process_set=process_set)
    values = allgather_async(own.values(), name=f"{base}.values", process_set=process_set)

    def finish() -> torch.Tensor:
        total = torch.sparse_coo_tensor(
            indices.synchronize().t(), values.synchronize(), tensor.shape, device=tensor.device, check_invariants=False
        ).coalesce()
        return total / process_set.size() if op is Average else total

    return finish
