"""The collectives on tensors. Non-contiguous tensors work, by way of a contiguous copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ringcore import Average, adapter
from ringcore.adapter import Buffer, Handle, ProcessSet, ReduceOp, UnsupportedArray, global_process_set, name_or_next

from ringcore_torch._bridge import as_buffer, as_contiguous, as_moved, copy_back, result_of

# Why a tensor is looked at more closely; what is no tensor at all lacks the attribute.
_UNSUPPORTED = UnsupportedArray, AttributeError


def _allreduce_copies(
    tensors: tuple[torch.Tensor, ...], name: str, *, in_place: bool, one: bool, **options: Any
) -> Handle:
    """`_start_allreduce` of tensors that the engine may not be able to work on as they are."""
    sources = tuple([_contiguous(tensor) for tensor in tensors])
    targets = sources if in_place else tuple([torch.empty_like(source) for source in sources])
    arrays = tuple(map(as_buffer, sources))

    def finish(_: Handle) -> Any:
        if in_place:
            _write_back(tensors, targets)
        results = list(tensors if in_place else targets)
        return results[0] if one else results

    return adapter.allreduce(
        arrays, arrays if in_place else tuple(map(as_buffer, targets)), name, finish=finish, **options
    )


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    as_buffer(tensor)  # tells what else may be wrong
    return as_contiguous(tensor)


def _write_back(tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Give results in place to tensors that were not contiguous."""
    for tensor, result in zip(tensors, results, strict=True):
        if result.data_ptr() != tensor.data_ptr():
            copy_back(result, tensor)


def _start_allreduce(
    tensors: tuple[torch.Tensor, ...], name: str, *, in_place: bool, one: bool, **options: Any
) -> Handle:
    """Start an allreduce; `one`: its result is the tensor, otherwise the list of them."""
    try:
        if any(tensor.is_neg() for tensor in tensors):
            raise UnsupportedArray("its memory holds the values with the other sign")
        targets = tensors if in_place else tuple([torch.empty_like(tensor) for tensor in tensors])
        return adapter.allreduce(tensors, targets, name, result=targets[0] if one else list(targets), **options)
    except _UNSUPPORTED:
        return _allreduce_copies(tensors, name, in_place=in_place, one=one, **options)


def allreduce(
    tensor: torch.Tensor,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks; every rank gets the same bits in a new tensor.

    Args:
        tensor: On the CPU or a CUDA device, of any shape: uint8, int8, uint16, int16, int32, int64, float16, bfloat16,
            float32, float64 or bool. On the CPU 16-bit floats are summed in float32 and rounded once.
        op: `Average` (floats only), `Sum`, `Min`, `Max` (NaN wins), `Product`.
        name: Identifies the tensor on all ranks; without one the order of the calls does.
        prescale_factor: Multiplied into the tensor before the reduction.
        postscale_factor: Multiplied into the result.
        process_set: The ranks that take part.

    Raises:
        InvalidArgument: On another device, sparse, an unknown dtype, an average of integers.
        MismatchError: Another rank used this name with another dtype, shape, op or factor. On every rank.
        TimeoutError: A rank did not submit it in time. On every rank.
        PeerLostError: A rank died or left. On every rank.
    """
    handle = _start_allreduce(
        (tensor,), name_or_next(name, "allreduce", process_set), in_place=False, one=True, op=op,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set, blocking=True,
    )  # fmt: skip
    result: torch.Tensor = handle.synchronize()
    return result


def allreduce_(
    tensor: torch.Tensor,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """`allreduce` in place."""
    if name is None:
        name = name_or_next(None, "allreduce", process_set)
    try:
        if tensor.is_neg():
            raise UnsupportedArray("its memory holds the values with the other sign")
        adapter.allreduce_in_place(
            tensor, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set,
        )  # fmt: skip
    except _UNSUPPORTED:
        _allreduce_copies(
            (tensor,), name, in_place=True, one=True, op=op, prescale_factor=prescale_factor,
            postscale_factor=postscale_factor, process_set=process_set, blocking=True,
        ).synchronize()  # fmt: skip
    return tensor


def allreduce_async(tensor: torch.Tensor, *, name: str | None = None, **options: Any) -> Handle:
    """Start an `allreduce`. The tensor may not be written until `synchronize` returns the result."""
    name = name_or_next(name, "allreduce", options.get("process_set"))
    return _start_allreduce((tensor,), name, in_place=False, one=True, **options)


def allreduce_async_(
    tensor: torch.Tensor,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle:
    """Start an `allreduce_`. The tensor may be neither read nor written until `synchronize` returns.

    Args:
        tensor: See `allreduce`, as for all but the last.
        op: `Average` (floats only), `Sum`, `Min`, `Max`, `Product`.
        name: Identifies the tensor on all ranks.
        prescale_factor: Multiplied into the tensor before the reduction.
        postscale_factor: Multiplied into the result.
        process_set: The ranks that take part.
        priority: The larger, the sooner; on the CPU, and not over MPI, it overtakes what has begun.
    """
    # The way of every gradient of a loop written by hand: as short as it can be.
    tensors = (tensor,)
    if name is None:
        name = name_or_next(None, "allreduce", process_set)
    try:
        if tensor.is_neg():
            raise UnsupportedArray("its memory holds the values with the other sign")
        return adapter.allreduce(
            tensors, tensors, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, priority=priority, result=tensor,
        )  # fmt: skip
    except _UNSUPPORTED:
        return _allreduce_copies(
            tensors, name, in_place=True, one=True, op=op, prescale_factor=prescale_factor,
            postscale_factor=postscale_factor, process_set=process_set, priority=priority,
        )  # fmt: skip


def grouped_allreduce(
    tensors: Sequence[torch.Tensor], *, name: str | None = None, **options: Any
) -> list[torch.Tensor]:
    """`allreduce` of several tensors that are released together: all of them run, or none."""
    result: list[torch.Tensor] = grouped_allreduce_async(tensors, name=name, **options).synchronize()
    return result


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor], *, name: str | None = None, **options: Any
) -> list[torch.Tensor]:
    """`grouped_allreduce` in place."""
    result: list[torch.Tensor] = grouped_allreduce_async_(tensors, name=name, **options).synchronize()
    return result


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], *, name: str | None = None, **options: Any) -> Handle:
    """Start a `grouped_allreduce`."""
    if not tensors:
        return Handle.of_nothing([])
    name = name_or_next(name, "grouped_allreduce", options.get("process_set"))
    return _start_allreduce(tuple(tensors), name, in_place=False, one=False, **options)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], *, name: str | None = None, **options: Any) -> Handle:
    """Start a `grouped_allreduce_`."""
    if not tensors:
        return Handle.of_nothing([])
    name = name_or_next(name, "grouped_allreduce", options.get("process_set"))
    return _start_allreduce(tuple(tensors), name, in_place=True, one=False, **options)


def _arrays(tensors: Sequence[torch.Tensor]) -> tuple[Buffer, ...]:
    return tuple(as_buffer(_contiguous(tensor)) for tensor in tensors)


def allgather(
    tensor: torch.Tensor, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate every rank's tensor along the first dimension, which may differ between ranks.

    Raises:
        MismatchError: Dtypes or other dimensions differ. On every rank.
    """
    result: torch.Tensor = allgather_async(tensor, name=name, process_set=process_set).synchronize()
    return result


def allgather_async(tensor: torch.Tensor, *, name: str | None = None, **options: Any) -> Handle:
    """Start an `allgather`."""
    name = name_or_next(name, "allgather", options.get("process_set"))
    return adapter.allgather(_arrays([tensor]), name, finish=lambda done: _gathered(done, tensor), **options)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """`allgather` of several tensors that are released together: all of them run, or none."""
    result: list[torch.Tensor] = grouped_allgather_async(tensors, name=name, process_set=process_set).synchronize()
    return result


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a `grouped_allgather`."""
    name = name_or_next(name, "grouped_allgather", process_set)
    if not tensors:
        return Handle.of_nothing([])
    return adapter.allgather(
        _arrays(tensors), name, process_set=process_set,
        finish=lambda done: [_gathered(done, tensor, i) for i, tensor in enumerate(tensors)],
    )  # fmt: skip


def _gathered(handle: Handle, tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
    return result_of(handle, (sum(handle.rows(index)), *tensor.shape[1:]), tensor, index)


def _start_broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, in_place: bool, blocking: bool
) -> Handle:
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        as_buffer(tensor)  # tells why not
    source = as_contiguous(tensor)
    result = source if in_place else torch.empty_like(source)
    array = as_buffer(as_moved(source))
    target = array if in_place else as_buffer(as_moved(result))

    def finish(_: Handle) -> torch.Tensor:
        if not in_place:
            return result
        _write_back([tensor], [result])
        return tensor

    return adapter.broadcast(
        array, target, root_rank, name_or_next(name, "broadcast", process_set),
        process_set=process_set, blocking=blocking, finish=finish,
    )  # fmt: skip


def broadcast(
    tensor: torch.Tensor, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """A new tensor with the root's values.

    Args:
        tensor: Of the same shape and dtype on every rank; of any dtype.
        root_rank: Rank of the job whose values win.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.

    Raises:
        MismatchError: Ranks named different roots, shapes or dtypes. On every rank.
    """
    result: torch.Tensor = _start_broadcast(
        tensor, root_rank, name, process_set, in_place=False, blocking=True
    ).synchronize()
    return result


def broadcast_(
    tensor: torch.Tensor, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """`broadcast` in place."""
    result: torch.Tensor = _start_broadcast(
        tensor, root_rank, name, process_set, in_place=True, blocking=True
    ).synchronize()
    return result


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a `broadcast`."""
    return _start_broadcast(tensor, root_rank, name, process_set, in_place=False, blocking=False)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a `broadcast_`."""
    return _start_broadcast(tensor, root_rank, name, process_set, in_place=True, blocking=False)


def reducescatter(
    tensor: torch.Tensor, *, op: ReduceOp = Average, name: str | None = None, **options: Any
) -> torch.Tensor:
    """Reduce over all ranks; each gets its share of the rows (the first ones one more where rows do not divide)."""
    result: torch.Tensor = reducescatter_async(tensor, op=op, name=name, **options).synchronize()
    return result


def reducescatter_async(
    tensor: torch.Tensor, *, op: ReduceOp = Average, name: str | None = None, **options: Any
) -> Handle:
    """Start a `reducescatter`."""
    process_set: ProcessSet = options.get("process_set", global_process_set)
    return adapter.reducescatter(
        _arrays([tensor]), name_or_next(name, "reducescatter", process_set), op=op,
        finish=lambda done: _scattered(done, tensor, process_set), **options,
    )  # fmt: skip


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor], *, op: ReduceOp = Average, name: str | None = None, **options: Any
) -> list[torch.Tensor]:
    """`reducescatter` of several tensors that are released together: all of them run, or none."""
    result: list[torch.Tensor] = grouped_reducescatter_async(tensors, op=op, name=name, **options).synchronize()
    return result


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor], *, op: ReduceOp = Average, name: str | None = None, **options: Any
) -> Handle:
    """Start a `grouped_reducescatter`."""
    name = name_or_next(name, "grouped_reducescatter", options.get("process_set"))
    if not tensors:
        return Handle.of_nothing([])
    process_set: ProcessSet = options.get("process_set", global_process_set)
    return adapter.reducescatter(
        _arrays(tensors), name, op=op,
        finish=lambda done: [_scattered(done, tensor, process_set, i) for i, tensor in enumerate(tensors)], **options,
    )  # fmt: skip


def _scattered(handle: Handle, tensor: torch.Tensor, process_set: ProcessSet, index: int = 0) -> torch.Tensor:
    members = process_set.size()
    rows = tensor.shape[0] // members + (process_set.rank() < tensor.shape[0] % members)
    return result_of(handle, (rows, *tensor.shape[1:]), tensor, index)


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[r]` rows to each rank r and receive theirs.

    Returns:
        The received rows in the order of the ranks; with `splits` a pair (rows, int32 tensor of how many came from
        each rank).

    Raises:
        MismatchError: A rank's splits do not fit its tensor or the number of ranks. On every rank.
    """
    return alltoall_async(tensor, splits, name=name, process_set=process_set).synchronize()


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an `alltoall`."""
    rows_to_send = splits.tolist() if isinstance(splits, torch.Tensor) else splits
    (source,) = _arrays([tensor])

    def finish(done: Handle) -> Any:
        rows = _gathered(done, tensor)
        if splits is None:
            return rows
        return rows, torch.tensor(done.rows(), dtype=torch.int32, device="cpu")

    name = name_or_next(name, "alltoall", process_set)
    return adapter.alltoall(source, rows_to_send, name, process_set=process_set, finish=finish)


def barrier(*, process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it."""
    adapter.barrier(name_or_next(None, "barrier", process_set), process_set=process_set)


def join(
    device: int = -1,  # noqa: ARG001
    *,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Take part in the others' allreduces with zeros until all ranks have called `join`; returns the last to join.

    Args:
        device: Unused; accepted because scripts written for Horovod pass it.
        process_set: The ranks that join.
    """
    return adapter.join(process_set=process_set)
