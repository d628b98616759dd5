"""The verbs on numpy arrays and whatever else speaks the buffer protocol, DLPack or the CUDA array interface."""

from __future__ import annotations

from typing import Any

from ringcore._errors import InvalidArgument
from ringcore._native import Buffer, Handle, UnsupportedArray
from ringcore.adapter import buffer
from ringcore.adapter.collectives import ReduceOp
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

    def contiguous(self, tensor: Any) -> Any:
        """See `adapter.Framework`."""
        return tensor

    def copy_back(self, source: Any, target: Any) -> None:
        """See `adapter.Framework`."""

    def empty_like(self, tensor: Any) -> Any:
        """See `adapter.Framework`."""
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
