"""The verbs on numpy arrays and whatever else speaks the buffer protocol, DLPack or the CUDA array interface."""

from __future__ import annotations

import math
import sys
from typing import Any

from ringcore._errors import InvalidArgument
from ringcore._native import Buffer, Handle, UnsupportedArray
from ringcore.adapter import buffer
from ringcore.adapter.collectives import ReduceOp, allocate
from ringcore.adapter.verbs import Verbs

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Adasum = ReduceOp.ADASUM


class Arrays:
    """Contiguous arrays; others are refused. See `adapter.Framework`."""

    def as_buffer(self, tensor: Any, *, writable: bool = False) -> Buffer:
        """See `adapter.Framework`."""
        return buffer.as_buffer(tensor, writable=writable)

    as_moved = as_buffer

    def as_output(self, tensor: Any) -> Buffer:
        """See `adapter.Framework`."""
        return buffer.as_buffer(tensor, writable=True)

    def contiguous(self, tensor: Any) -> Any:
        """See `adapter.Framework`."""
        return tensor

    def copy_back(self, source: Any, target: Any) -> None:
        """See `adapter.Framework`."""

    def empty_like(self, tensor: Any) -> Any:
        """See `adapter.Framework`."""
        numpy = sys.modules.get("numpy")
        if numpy is not None and type(tensor) is numpy.ndarray:
            return numpy.empty_like(tensor)
        try:
            return buffer.empty_like(buffer.as_buffer(tensor))
        except InvalidArgument as error:
            raise UnsupportedArray from error

    def result_of(self, handle: Handle, shape: tuple[int, ...], source: Buffer, index: int) -> Any:
        """See `adapter.Framework`."""
        return buffer.result_of(handle, shape, source, index)

    def row_counts(self, rows: list[int]) -> list[int]:
        """See `adapter.Framework`."""
        return rows


def empty(shape: int | tuple[int, ...], dtype: Any = "float32") -> Any:
    """A new uninitialised array of numpy for collectives, in memory that the ranks of a host see of each other.

    What they reduce in it they reduce where it lies, several times as quickly as in other memory. It goes on working
    after `shutdown`, as any array. Where ranks of this host share no memory it is an ordinary array.

    Args:
        shape: Numbers of elements.
        dtype: Of numpy, or its name; bfloat16 needs ml_dtypes.

    Raises:
        ResourceError: No room; the message tells which setting makes more.
    """
    import numpy as np

    if str(dtype) == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    kind = np.dtype(dtype)
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    count = math.prod(extents)
    memory = allocate(count * kind.itemsize) if count > 0 else None
    if memory is None:
        return np.empty(extents, kind)
    return np.frombuffer(memory.view(), kind, count).reshape(extents)


_verbs: Verbs[Any] = Verbs(Arrays())

allreduce = _verbs.allreduce
allreduce_ = _verbs.allreduce_
allreduce_async = _verbs.allreduce_async
allreduce_async_ = _verbs.allreduce_async_
grouped_allreduce = _verbs.grouped_allreduce
grouped_allreduce_ = _verbs.grouped_allreduce_
grouped_allreduce_async = _verbs.grouped_allreduce_async
grouped_allreduce_async_ = _verbs.grouped_allreduce_async_
allgather = _verbs.allgather
allgather_async = _verbs.allgather_async
grouped_allgather = _verbs.grouped_allgather
grouped_allgather_async = _verbs.grouped_allgather_async
broadcast = _verbs.broadcast
broadcast_ = _verbs.broadcast_
broadcast_async = _verbs.broadcast_async
broadcast_async_ = _verbs.broadcast_async_
reducescatter = _verbs.reducescatter
reducescatter_async = _verbs.reducescatter_async
grouped_reducescatter = _verbs.grouped_reducescatter
grouped_reducescatter_async = _verbs.grouped_reducescatter_async
alltoall = _verbs.alltoall
alltoall_async = _verbs.alltoall_async
barrier = _verbs.barrier
join = _verbs.join

# Called once a tensor: the native methods themselves, without a Python function around them.
poll = Handle.done
synchronize = Handle.synchronize
