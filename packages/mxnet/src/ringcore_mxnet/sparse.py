"""Row-sparse arrays, such as the gradients of embeddings: only the rows that some rank has are sent."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import ringcore
from ringcore import Average
from ringcore.adapter import ProcessSet, ReduceOp, check_rows, global_process_set, start_allreduce_of_rows


def allreduce(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Add up the rows of all ranks: an allgather of indices and values. Waits for the result.

    Args:
        tensor: `mx.nd.sparse.RowSparseNDArray`, of the same shape on every rank; ranks may have any number of rows.
        op: `Average` or `Sum`.
        name: Identifies the tensor on all ranks.
        factor: Multiplied into the result.
        process_set: The ranks that take part.

    Returns:
        A new row-sparse array with each row once.

    Raises:
        InvalidArgument: Another `op`, or an average or a factor of integers.
    """
    check_rows("allreduce of a row-sparse array", np.dtype(tensor.dtype).name, op, factor)
    own = tensor.indices.asnumpy().reshape(-1).astype(np.int64)
    values = tensor.data.asnumpy() if own.size else np.empty((0, *tensor.shape[1:]), tensor.dtype)

    def combine(indices: Any, rows: Any, scale: float) -> Any:
        if indices.size == 0:
            return mx.nd.sparse.zeros("row_sparse", tensor.shape, dtype=tensor.dtype)
        # By row, then by rank.
        order = np.argsort(indices, kind="stable")
        kept, begins = np.unique(indices[order], return_index=True)
        sums = np.add.reduceat(rows[order], begins, axis=0)
        sums = (sums * np.asarray(scale, sums.dtype)).astype(sums.dtype, copy=False)
        return mx.nd.sparse.row_sparse_array((sums, kept), shape=tensor.shape, dtype=tensor.dtype)

    return start_allreduce_of_rows(
        ringcore.grouped_allgather_async, own, np.ascontiguousarray(values), combine, op=op, name=name,
        kind="mxnet.sparse_allreduce", factor=factor, process_set=process_set,
    )()  # fmt: skip
