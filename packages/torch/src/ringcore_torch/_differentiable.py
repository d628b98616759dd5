"""The blocking collectives with gradients: what autograd records of them, and sends back through the ranks.

The loss of the job is the sum of the losses of its ranks. A tensor that went to several ranks has a part in each of
them, so that its gradient is the sum of what those ranks send back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ringcore import InvalidArgument
from ringcore._context import ProcessSet, global_process_set
from ringcore._operations import Average, Sum, name_or_next
from ringcore.adapter import ReduceOp

from ringcore_torch import _operations as plain
from ringcore_torch.compression import Compression, Compressor


def _tracked(*tensors: torch.Tensor) -> bool:
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgument(f"a tensor of PyTorch is needed, not {type(tensor).__name__}")
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, options: dict[str, Any], *tensors: torch.Tensor) -> Any:
        ctx.name, ctx.options = name, options
        if len(tensors) == 1:
            return plain.allreduce(tensors[0], name=name, **options)
        return tuple(plain.grouped_allreduce(tensors, name=name, **options))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        op = ctx.options.get("op", Average)
        if op not in (Average, Sum):
            raise InvalidArgument(f"allreduce '{ctx.name}' with op={op.name} has no gradient; use op=Sum or op=Average")
        name = f"{ctx.name}.gradient"
        if len(grads) == 1:
            return None, None, plain.allreduce(grads[0], name=name, **ctx.options)
        return None, None, *plain.grouped_allreduce(grads, name=name, **ctx.options)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, process_set: ProcessSet, tensor: torch.Tensor) -> torch.Tensor:
        handle = plain.allgather_async(tensor, name=name, process_set=process_set)
        result: torch.Tensor = handle.synchronize()
        rows = handle.rows()
        me = process_set.rank()
        ctx.name, ctx.process_set, ctx.shape = name, process_set, tensor.shape
        ctx.begin, ctx.rows = sum(rows[:me]), rows[me]
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        total = plain.allreduce(grad, op=Sum, name=f"{ctx.name}.gradient", process_set=ctx.process_set)
        return None, None, total[ctx.begin : ctx.begin + ctx.rows].reshape(ctx.shape)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, root_rank: int, process_set: ProcessSet, tensor: torch.Tensor) -> torch.Tensor:
        ctx.name, ctx.process_set = name, process_set
        ctx.is_root = process_set.ranks[process_set.rank()] == root_rank
        return plain.broadcast(tensor, root_rank, name=name, process_set=process_set)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        total = plain.allreduce(grad, op=Sum, name=f"{ctx.name}.gradient", process_set=ctx.process_set)
        return None, None, None, total if ctx.is_root else torch.zeros_like(total)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, splits: Any, process_set: ProcessSet, tensor: torch.Tensor) -> Any:
        handle = plain.alltoall_async(tensor, splits, name=name, process_set=process_set)
        result = handle.synchronize()
        ctx.name, ctx.process_set = name, process_set
        ctx.received = list(handle.rows())
        if splits is None:
            return result
        ctx.mark_non_differentiable(result[1])
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        back = plain.alltoall(grad, ctx.received, name=f"{ctx.name}.gradient", process_set=ctx.process_set)
        return None, None, None, back[0]


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, options: dict[str, Any], tensor: torch.Tensor) -> torch.Tensor:
        ctx.name, ctx.options = name, options
        return plain.reducescatter(tensor, name=name, **options)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        op, process_set = ctx.options.get("op", Average), ctx.options.get("process_set", global_process_set)
        if op not in (Average, Sum):
            raise InvalidArgument(
                f"reducescatter '{ctx.name}' with op={op.name} has no gradient; use op=Sum or op=Average"
            )
        factor = ctx.options.get("prescale_factor", 1.0) * ctx.options.get("postscale_factor", 1.0)
        if op is Average:
            factor /= process_set.size()
        return None, None, plain.allgather(grad, name=f"{ctx.name}.gradient", process_set=process_set) * factor


def allreduce(
    tensor: torch.Tensor,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    **options: Any,
) -> torch.Tensor:
    """`plain.allreduce`, recorded by autograd where the tensor requires a gradient.

    Args:
        tensor: See `plain.allreduce`, as for the other options.
        op: Only `Average` and `Sum` have gradients.
        name: Identifies the tensor on all ranks.
        compression: What is sent: see `Compression`.
        options: `prescale_factor`, `postscale_factor`, `process_set`.
    """
    compressed, context = compression.compress(tensor)
    if not _tracked(compressed):
        return compression.decompress(plain.allreduce(compressed, op=op, name=name, **options), context)
    name = name_or_next(name, "allreduce", options.get("process_set"))
    result = _Allreduce.apply(name, {"op": op, **options}, compressed)  # type: ignore[no-untyped-call]
    return compression.decompress(result, context)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    **options: Any,
) -> list[torch.Tensor]:
    """`allreduce` of several tensors that are released together: all of them run, or none."""
    if not tensors:
        return []
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    if not _tracked(*compressed):
        results = plain.grouped_allreduce(compressed, op=op, name=name, **options)
    else:
        base = name_or_next(name, "grouped_allreduce", options.get("process_set"))
        result = _Allreduce.apply(base, {"op": op, **options}, *compressed)  # type: ignore[no-untyped-call]
        results = list(result) if len(compressed) > 1 else [result]
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(results, pairs, strict=True)]


def allgather(
    tensor: torch.Tensor, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate every rank's tensor along the first dimension, which may differ between ranks.

    Raises:
        MismatchError: Dtypes or other dimensions differ. On every rank.
    """
    if not _tracked(tensor):
        return plain.allgather(tensor, name=name, process_set=process_set)
    name = name_or_next(name, "allgather", process_set)
    result: torch.Tensor = _Allgather.apply(name, process_set, tensor)  # type: ignore[no-untyped-call]
    return result


def broadcast(
    tensor: torch.Tensor, root_rank: int, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """A new tensor with the root's values. See `plain.broadcast`."""
    if not _tracked(tensor):
        return plain.broadcast(tensor, root_rank, name=name, process_set=process_set)
    name = name_or_next(name, "broadcast", process_set)
    result: torch.Tensor = _Broadcast.apply(name, root_rank, process_set, tensor)  # type: ignore[no-untyped-call]
    return result


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[r]` rows to each rank r and receive theirs. See `plain.alltoall`."""
    if not _tracked(tensor):
        return plain.alltoall(tensor, splits, name=name, process_set=process_set)
    return _Alltoall.apply(name_or_next(name, "alltoall", process_set), splits, process_set, tensor)  # type: ignore[no-untyped-call]


def reducescatter(
    tensor: torch.Tensor, *, op: ReduceOp = Average, name: str | None = None, **options: Any
) -> torch.Tensor:
    """Reduce over all ranks; each gets its share of the rows (the first ones one more where rows do not divide)."""
    if not _tracked(tensor):
        return plain.reducescatter(tensor, op=op, name=name, **options)
    name = name_or_next(name, "reducescatter", options.get("process_set"))
    result: torch.Tensor = _Reducescatter.apply(name, {"op": op, **options}, tensor)  # type: ignore[no-untyped-call]
    return result
