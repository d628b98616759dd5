"""The collectives on tensors. Non-contiguous tensors work, by way of a contiguous copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ringcore import adapter
from ringcore._context import ProcessSet, global_process_set
from ringcore._operations import Average, Handle, group_names, name_or_next
from ringcore.adapter import ReduceOp

from ringcore_torch._bridge import as_buffer, from_bytes


def _start_allreduce(
    tensors: Sequence[torch.Tensor], names: Sequence[str], *, in_place: bool, **options: Any
) -> Handle:
    """`allreduce` of one tensor or of a group. The result of the handle is the list of tensors."""
    pairs, results = [], []
    for tensor in tensors:
        source = tensor.detach().contiguous()
        target = source if in_place else torch.empty_like(source)
        pairs.append((as_buffer(source), as_buffer(target)))
        results.append(target)

    def finish(_: adapter.Handle) -> list[torch.Tensor]:
        if not in_place:
            return results
        for tensor, result in zip(tensors, results, strict=True):
            if result.data_ptr() != tensor.data_ptr():  # it was not contiguous
                tensor.detach().copy_(result)
        return list(tensors)

    return Handle(adapter.allreduce(pairs, names, **options), finish)


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
        tensor: On the CPU, of any shape: uint8, int8, uint16, int16, int32, int64, float16, bfloat16, float32, float64
            or bool. 16-bit floats are summed in float32 and rounded once.
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
    source = tensor.detach().contiguous()
    result = torch.empty_like(source)
    adapter.allreduce_now(
        as_buffer(source), as_buffer(result), name_or_next(name, "allreduce"), op, prescale_factor, postscale_factor,
        process_set,
    )  # fmt: skip
    return result


def allreduce_(
    tensor: torch.Tensor, *, op: ReduceOp = Average, name: str | None = None, **options: Any
) -> torch.Tensor:
    """`allreduce` in place."""
    source = tensor.detach().contiguous()
    buffer = as_buffer(source)
    adapter.allreduce_now(buffer, buffer, name_or_next(name, "allreduce"), op, **options)
    if source.data_ptr() != tensor.data_ptr():  # it was not contiguous
        tensor.detach().copy_(source)
    return tensor


def allreduce_async(tensor: torch.Tensor, *, name: str | None = None, **options: Any) -> Handle:
    """Start an `allreduce`. The tensor may not be written until `synchronize` returns the result."""
    handle = _start_allreduce([tensor], [name_or_next(name, "allreduce")], in_place=False, **options)
    return Handle(handle._handle, lambda done: handle._finish(done)[0])


def allreduce_async_(tensor: torch.Tensor, *, name: str | None = None, **options: Any) -> Handle:
    """Start an `allreduce_`. The tensor may be neither read nor written until `synchronize` returns."""
    handle = _start_allreduce([tensor], [name_or_next(name, "allreduce")], in_place=True, **options)
    return Handle(handle._handle, lambda done: handle._finish(done)[0])


def grouped_allreduce(
    tensors: Sequence[torch.Tensor], *, name: str | None = None, **options: Any
) -> list[torch.Tensor]:
    """`allreduce` of several tensors that are released together: all of them run, or none."""
    result: list[torch.Tensor] = grouped_allreduce_async(tensors, name=name, **options).wait()
    return result


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor], *, name: str | None = None, **options: Any
) -> list[torch.Tensor]:
    """`grouped_allreduce` in place."""
    result: list[torch.Tensor] = grouped_allreduce_async_(tensors, name=name, **options).wait()
    return result


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], *, name: str | None = None, **options: Any) -> Handle:
    """Start a `grouped_allreduce`."""
    return _start_allreduce(tensors, group_names(tensors, name), in_place=False, **options)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], *, name: str | None = None, **options: Any) -> Handle:
    """Start a `grouped_allreduce_`."""
    return _start_allreduce(tensors, group_names(tensors, name), in_place=True, **options)


def allgather(
    tensor: torch.Tensor, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate every rank's tensor along the first dimension, which may differ between ranks.

    Raises:
        MismatchError: Dtypes or other dimensions differ. On every rank.
    """
    result: torch.Tensor = allgather_async(tensor, name=name, process_set=process_set).wait()
    return result


def allgather_async(tensor: torch.Tensor, *, name: str | None = None, **options: Any) -> Handle:
    """Start an `allgather`."""
    source = as_buffer(tensor.detach().contiguous())
    handle = adapter.allgather(source, name_or_next(name, "allgather"), **options)
    return Handle(handle, lambda done: _gathered(done, tensor))


class GroupHandle:
    """Several operations that run all or none; `synchronize` returns the list of their results."""

    def __init__(self, handles: list[Handle]) -> None:
        self._handles = handles

    def done(self) -> bool:
        """Whether all have ended."""
        finished = [handle.done() for handle in self._handles]  # asks each: that lets open buckets go
        return all(finished)

    def wait(self) -> list[torch.Tensor]:
        """Wait for all results. Raises what made the group fail."""
        return [handle.wait() for handle in self._handles]


def grouped_allgather(
    tensors: Sequence[torch.Tensor], *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """`allgather` of several tensors that are released together: all of them run, or none."""
    return grouped_allgather_async(tensors, name=name, process_set=process_set).wait()


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> GroupHandle:
    """Start a `grouped_allgather`."""
    names = group_names(tensors, name, "grouped_allgather")
    group: dict[str, Any] = {"group": names[0], "group_size": len(names)} if len(names) > 1 else {}
    return GroupHandle(
        [
            allgather_async(tensor, name=one, process_set=process_set, **group)
            for tensor, one in zip(tensors, names, strict=True)
        ]
    )


def grouped_reducescatter(tensors: Sequence[torch.Tensor], *, name: str | None = None, **options: Any) -> list[Any]:
    """`reducescatter` of several tensors that are released together: all of them run, or none."""
    return grouped_reducescatter_async(tensors, name=name, **options).wait()


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor], *, name: str | None = None, **options: Any
) -> GroupHandle:
    """Start a `grouped_reducescatter`."""
    names = group_names(tensors, name, "grouped_reducescatter")
    group: dict[str, Any] = {"group": names[0], "group_size": len(names)} if len(names) > 1 else {}
    return GroupHandle(
        [reducescatter_async(tensor, name=one, **options, **group) for tensor, one in zip(tensors, names, strict=True)]
    )


def _gathered(handle: adapter.Handle, tensor: torch.Tensor) -> torch.Tensor:
    operation = handle.operations[0]
    return from_bytes(operation.result, (sum(operation.result_rows), *tensor.shape[1:]), tensor.dtype)


def _start_broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, in_place: bool, blocking: bool
) -> Handle:
    source = tensor.detach().contiguous()
    result = source if in_place else torch.empty_like(source)
    handle = adapter.broadcast(
        as_buffer(source), as_buffer(result), root_rank, name_or_next(name, "broadcast"), process_set=process_set,
        blocking=blocking,
    )  # fmt: skip

    def finish(_: adapter.Handle) -> torch.Tensor:
        if not in_place:
            return result
        if result.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(result)
        return tensor

    return Handle(handle, finish)


def broadcast(
    tensor: torch.Tensor, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """A new tensor with the root's values.

    Args:
        tensor: Of the same shape and dtype on every rank.
        root_rank: Rank of the job whose values win.
        name: Identifies the tensor on all ranks.
        process_set: The ranks that take part.

    Raises:
        MismatchError: Ranks named different roots, shapes or dtypes. On every rank.
    """
    result: torch.Tensor = _start_broadcast(tensor, root_rank, name, process_set, in_place=False, blocking=True).wait()
    return result


def broadcast_(
    tensor: torch.Tensor, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """`broadcast` in place."""
    result: torch.Tensor = _start_broadcast(tensor, root_rank, name, process_set, in_place=True, blocking=True).wait()
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
    result: torch.Tensor = reducescatter_async(tensor, op=op, name=name, **options).wait()
    return result


def reducescatter_async(
    tensor: torch.Tensor, *, op: ReduceOp = Average, name: str | None = None, **options: Any
) -> Handle:
    """Start a `reducescatter`."""
    source = as_buffer(tensor.detach().contiguous())
    process_set: ProcessSet = options.get("process_set", global_process_set)
    members, index = process_set.size(), process_set.rank()
    handle = adapter.reducescatter(source, name_or_next(name, "reducescatter"), op=op, **options)

    def finish(done: adapter.Handle) -> torch.Tensor:
        rows = tensor.shape[0] // members + (index < tensor.shape[0] % members)
        return from_bytes(done.operations[0].result, (rows, *tensor.shape[1:]), tensor.dtype)

    return Handle(handle, finish)


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
    return alltoall_async(tensor, splits, name=name, process_set=process_set).wait()


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an `alltoall`."""
    source = as_buffer(tensor.detach().contiguous())
    rows_to_send = splits.tolist() if isinstance(splits, torch.Tensor) else splits
    handle = adapter.alltoall(source, rows_to_send, name_or_next(name, "alltoall"), process_set=process_set)

    def finish(done: adapter.Handle) -> Any:
        rows = _gathered(done, tensor)
        if splits is None:
            return rows
        return rows, torch.tensor(done.operations[0].result_rows, dtype=torch.int32)

    return Handle(handle, finish)


def barrier(*, process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it."""
    adapter.barrier(name_or_next(None, "barrier"), process_set=process_set)


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
