"""The verbs on numpy arrays and whatever else speaks the buffer protocol, DLPack or the CUDA array interface."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from ringcore._errors import InvalidArgument
from ringcore._native import Buffer, Handle, UnsupportedArray
from ringcore.adapter import buffer
from ringcore.adapter.collectives import ReduceOp, allocate
from ringcore.adapter.compression import QUANTISED, Choices, Compressor
from ringcore.adapter.narrowed import BFloat16, Float16, Whole, reduce_narrowed
from ringcore.adapter.starts import alone, first
from ringcore.adapter.verbs import Verbs
from ringcore.job.process_sets import ProcessSet, global_process_set

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

    def row_counts(self, rows: list[int], _splits: Any) -> list[int]:
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


class _Int8(Whole):
    quantised = QUANTISED["int8"]


class _Int4(Whole):
    quantised = QUANTISED["int4"]


class Compression(Choices):
    """What `compression=` takes: what float32 and float64 are sent as.

    `none`; `fp16`: 11 bits of precision, values up to 65504; `bf16`: 8 bits, and float32's range; `int8`, `int4`:
    between hosts, integers in blocks of 128 with a scale each, in a quarter or an eighth of float32's bytes. Their
    names will do, too. On GPUs all are sent as they are.
    """

    none = Whole
    fp16 = Float16
    bf16 = BFloat16
    int8 = _Int8
    int4 = _Int4


_verbs: Verbs[Any] = Verbs(Arrays())


def allreduce(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Any = None,
    compression: type[Compressor[Any]] | str = Compression.none,
) -> Any:
    """`Verbs.allreduce`, of which less may be sent: see `Compression`."""
    compressor = Compression.chosen(compression)
    if _narrows(compressor, tensor):
        (result,) = reduce_narrowed(
            _verbs.start_allreduce, compressor, (tensor,), name, kind="allreduce", op=op,
            prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set, out=alone(out),
        )  # fmt: skip
        return result
    code = compressor.code_for(tensor)
    if code == QUANTISED["none"]:
        return _verbs.allreduce(
            tensor, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=out,
        )  # fmt: skip
    return _verbs.start_allreduce(
        (tensor,), name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        process_set=process_set, out=alone(out), blocking=True, finish=first, compression=code,
    ).synchronize()  # fmt: skip


def grouped_allreduce(
    tensors: Sequence[Any],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Sequence[Any] | None = None,
    compression: type[Compressor[Any]] | str = Compression.none,
) -> list[Any]:
    """`allreduce` of several arrays that are released together: all of them run, or none."""
    if not tensors:
        return []
    compressor = Compression.chosen(compression)
    if _narrows(compressor, *tensors):
        return reduce_narrowed(
            _verbs.start_allreduce, compressor, tuple(tensors), name, kind="grouped_allreduce", op=op,
            prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set, out=out,
        )  # fmt: skip
    results: list[Any] = _verbs.start_allreduce(
        tuple(tensors), name, kind="grouped_allreduce", op=op, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set, out=out,
        compression=compressor.code_for(*tensors),
    ).synchronize()  # fmt: skip
    return results


def _narrows(compression: type[Compressor[Any]], *tensors: Any) -> bool:
    """Whether any of the arrays is cast. Without it the engine looks at them itself, which is quicker."""
    if compression.wire_dtype is None:
        return False
    return any(compression.dtype_of(tensor) in compression.wide_dtypes for tensor in tensors)


allreduce_ = _verbs.allreduce_
allreduce_async = _verbs.allreduce_async
allreduce_async_ = _verbs.allreduce_async_
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
reduce = _verbs.reduce
reduce_async = _verbs.reduce_async
gather = _verbs.gather
gather_async = _verbs.gather_async
scatter = _verbs.scatter
scatter_async = _verbs.scatter_async
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
