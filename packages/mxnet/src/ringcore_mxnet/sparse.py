"""Row-sparse arrays, such as the gradients of embeddings: only the rows that some rank has are sent."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import ringcore
from ringcore import Average, InvalidArgument, Sum
from ringcore.adapter import ProcessSet, ReduceOp, global_process_set, name_or_next


def allreduce(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Add up the rows of all ranks: two allgathers, of indices and of values. Waits for the result.

    Args:
        tensor: `mx.nd.sparse.RowSparseNDArray`, of the same shape on every rank; ranks may have any number of rows.
        op: `Average` or `Sum`.
        name: Identifies the tensor on all ranks.
        factor: Multiplied into the result.
        process_set: The ranks that take part.

    Returns:
        A new row-sparse array with each row once.

    Raises:
        InvalidArgument: Another `op`.
    """
    if op not in (Average, Sum):
        raise InvalidArgument(f"a row-sparse array takes op=Average or op=Sum, not {op.name}")
    name = name_or_next(name, "mxnet.sparse_allreduce", process_set)
    own = tensor.indices.asnumpy().reshape(-1).astype(np.int64)
    values = tensor.data.asnumpy() if own.size else np.empty((0, *tensor.shape[1:]), tensor.dtype)
    handles = [
        ringcore.allgather_async(part, name=f"{name}.{what}", process_set=process_set)
        for what, part in (("indices", own), ("values", np.ascontiguousarray(values)))
    ]
    indices, rows = (ringcore.synchronize(handle) for handle in handles)
    if indices.size == 0:
        return mx.nd.sparse.zeros("row_sparse", tensor.shape, dtype=tensor.dtype)
    # The same order on all ranks, so that the sums are the same bits: by row, then by rank.
    order = np.argsort(indices, kind="stable")
    kept, begins = np.unique(indices[order], return_index=True)
    sums = np.add.reduceat(rows[order], begins, axis=0)
    scale = factor / process_set.size() if op is Average else factor
    sums = (sums * np.asarray(scale, sums.dtype)).astype(sums.dtype, copy=False)
    return mx.nd.sparse.row_sparse_array((sums, kept), shape=tensor.shape, dtype=tensor.dtype)
