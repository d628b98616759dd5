"""The collectives of `ringcore` on numpy arrays and whatever else speaks the buffer protocol or DLPack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringcore._native import Buffer, Handle, UnsupportedArray
from ringcore.adapter import collectives as adapter
from ringcore.adapter.buffer import as_buffer, empty_like, result_of
from ringcore.adapter.collectives import ReduceOp, name_or_next
from ringcore.job.process_sets import ProcessSet, global_process_set
from ringcore.job.state import context

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Adasum = ReduceOp.ADASUM


# Called once a tensor: the native methods themselves, without a Python function around them.
poll = Handle.done
synchronize = Handle.synchronize


def _as_buffers(tensors: Sequence[Any], *, writable: bool = False) -> tuple[Buffer, ...]:
    return tuple(as_buffer(tensor, writable=writable) for tensor in tensors)


def _empty_like(buffers: Sequence[Buffer]) -> list[Any]:
    return [empty_like(buffer) for buffer in buffers]


def allreduce(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce a tensor over all ranks; every rank gets the same bits.

    Every rank calls this with the same `name`, dtype and shape. Without a name the call order identifies the tensor.

    Args:
        tensor: Contiguous array of any shape, in host memory or on a GPU: uint8, int8, uint16, int16, int32, int64,
            float16, bfloat16, float32, float64, bool. In host memory 16-bit floats are summed in float32 and rounded
            once.
        op: `Average` (floats only), `Sum`, `Min`, `Max` (NaN wins), `Product`.
        name: Identifies the tensor on all ranks; at most 4096 bytes of UTF-8.
        prescale_factor: Multiplied into the tensor before the reduction.
        postscale_factor: Multiplied into the result.
        process_set: The ranks that take part.

    Returns:
        A new array of the same shape and dtype.

    Raises:
        InvalidArgument: Not contiguous, an unknown dtype, an average of integers.
        MismatchError: Another rank used this name with another dtype, shape, op or factor. On every rank.
        TimeoutError: A rank did not submit it within `RINGCORE_TIMEOUT_S`. On every rank.
        PeerLostError: A rank died or left. On every rank.
    """
    source = as_buffer(tensor)
    result = empty_like(source)
    adapter.allreduce(
        (source,), (as_buffer(result),), name_or_next(name, "allreduce", process_set), op=op,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set, blocking=True,
    )  # fmt: skip
    return result


def allreduce_(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`allreduce` in place: the tensor holds the result afterwards and is returned. Read-only memory is refused."""
    if name is None:
        name = context().next_name("allreduce", process_set)
    try:
        adapter.allreduce_in_place(
            tensor, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set,
        )  # fmt: skip
    except UnsupportedArray:
        adapter.allreduce_in_place(
            as_buffer(tensor, writable=True), name, op=op, prescale_factor=prescale_factor,
            postscale_factor=postscale_factor, process_set=process_set,
        )  # fmt: skip
    return tensor


def allreduce_async(tensor: Any, *, name: str | None = None, **options: Any) -> Handle:
    """Start an `allreduce`; `synchronize` returns the result. The tensor may not be written until then."""
    sources = _as_buffers([tensor])
    (result,) = _empty_like(sources)
    name = name_or_next(name, "allreduce", options.get("process_set"))
    return adapter.allreduce(sources, _as_buffers([result]), name, result=result, **options)


def allreduce_async_(tensor: Any, *, name: str | None = None, **options: Any) -> Handle:
    """Start an `allreduce_`. The tensor may be neither read nor written until `synchronize` returns."""
    buffers = _as_buffers([tensor], writable=True)
    name = name_or_next(name, "allreduce", options.get("process_set"))
    return adapter.allreduce(buffers, buffers, name, result=tensor, **options)


def grouped_allreduce(tensors: Sequence[Any], *, name: str | None = None, **options: Any) -> list[Any]:
    """`allreduce` of several tensors that are released together: all of them run, or none."""
    result: list[Any] = grouped_allreduce_async(tensors, name=name, **options).synchronize()
    return result


def grouped_allreduce_(tensors: Sequence[Any], *, name: str | None = None, **options: Any) -> Sequence[Any]:
    """`grouped_allreduce` in place."""
    result: Sequence[Any] = grouped_allreduce_async_(tensors, name=name, **options).synchronize()
    return result


def grouped_allreduce_async(tensors: Sequence[Any], *, name: str | None = None, **options: Any) -> Handle:
    """Start a `grouped_allreduce`."""
    if not tensors:
        return Handle.of_nothing([])
    sources = _as_buffers(tensors)
    results = _empty_like(sources)
    name = name_or_next(name, "grouped_allreduce", options.get("process_set"))
    return adapter.allreduce(sources, _as_buffers(results), name, result=results, **options)


def grouped_allreduce_async_(tensors: Sequence[Any], *, name: str | None = None, **options: Any) -> Handle:
    """Start a `grouped_allreduce_`."""
    if not tensors:
        return Handle.of_nothing([])
    buffers = _as_buffers(tensors, writable=True)
    name = name_or_next(name, "grouped_allreduce", options.get("process_set"))
    return adapter.allreduce(buffers, buffers, name, result=tensors, **options)


def allgather(tensor: Any, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate every rank's tensor along the first dimension, which may differ between ranks.

    Raises:
        MismatchError: Dtypes or other dimensions differ. On every rank.
    """
    return allgather_async(tensor, name=name, process_set=process_set).synchronize()


def allgather_async(tensor: Any, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Start an `allgather`."""
    source = as_buffer(tensor)
    name = name_or_next(name, "allgather", process_set)
    return adapter.allgather((source,), name, process_set=process_set, finish=lambda done: _gathered(done, source))


def _gathered(handle: Handle, source: Buffer) -> Any:
    return result_of(handle, (sum(handle.rows()), *source.shape[1:]), source)


def broadcast(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """A new array with the root's values.

    Args:
        tensor: Of the same shape and dtype on every rank.
        root_rank: Rank of the job whose values win.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.

    Raises:
        MismatchError: Ranks named different roots, shapes or dtypes, or a root that is no member. On every rank.
    """
    source = as_buffer(tensor)
    result = empty_like(source)
    name = name_or_next(name, "broadcast", process_set)
    adapter.broadcast(source, as_buffer(result), root_rank, name, process_set=process_set, blocking=True)
    return result


def broadcast_(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """`broadcast` in place."""
    buffer = as_buffer(tensor, writable=True)
    name = name_or_next(name, "broadcast", process_set)
    adapter.broadcast(buffer, buffer, root_rank, name, process_set=process_set, blocking=True)
    return tensor


def broadcast_async(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a `broadcast`."""
    source = as_buffer(tensor)
    result = empty_like(source)
    name = name_or_next(name, "broadcast", process_set)
    return adapter.broadcast(source, as_buffer(result), root_rank, name, process_set=process_set, result=result)


def broadcast_async_(
    tensor: Any, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a `broadcast_`."""
    buffer = as_buffer(tensor, writable=True)
    name = name_or_next(name, "broadcast", process_set)
    return adapter.broadcast(buffer, buffer, root_rank, name, process_set=process_set, result=tensor)


def reducescatter(tensor: Any, *, op: ReduceOp = Average, name: str | None = None, **options: Any) -> Any:
    """Reduce over all ranks; each gets its share of the rows (the first ones one more where rows do not divide)."""
    return reducescatter_async(tensor, op=op, name=name, **options).synchronize()


def reducescatter_async(tensor: Any, *, op: ReduceOp = Average, name: str | None = None, **options: Any) -> Handle:
    """Start a `reducescatter`."""
    source = as_buffer(tensor)
    process_set: ProcessSet = options.get("process_set", global_process_set)

    def finish(done: Handle) -> Any:
        members, index = (
            process_set.size(),
            process_set.rank() if process_set is not global_process_set else context().rank,
        )
        rows = source.shape[0] // members + (index < source.shape[0] % members)
        return result_of(done, (rows, *source.shape[1:]), source)

    name = name_or_next(name, "reducescatter", options.get("process_set"))
    return adapter.reducescatter((source,), name, op=op, finish=finish, **options)


def alltoall(
    tensor: Any,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[r]` rows to each rank r and receive theirs.

    Returns:
        The received rows in the order of the ranks; with `splits` a pair (rows, how many came from each rank).

    Raises:
        MismatchError: A rank's splits do not fit its tensor or the number of ranks. On every rank.
    """
    return alltoall_async(tensor, splits, name=name, process_set=process_set).synchronize()


def alltoall_async(
    tensor: Any,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an `alltoall`."""
    source = as_buffer(tensor)

    def finish(done: Handle) -> Any:
        rows = _gathered(done, source)
        return rows if splits is None else (rows, list(done.rows()))

    name = name_or_next(name, "alltoall", process_set)
    return adapter.alltoall(source, splits, name, process_set=process_set, finish=finish)


def barrier(*, process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it."""
    adapter.barrier(name_or_next(None, "barrier", process_set), process_set=process_set)


def join(*, process_set: ProcessSet = global_process_set) -> int:
    """Take part in the others' allreduces with zeros until all ranks have called `join`.

    For loops of different length: call it after the loop. Averages are still divided by the number of all ranks.

    Returns:
        The rank that joined last.
    """
    return adapter.join(process_set=process_set)
