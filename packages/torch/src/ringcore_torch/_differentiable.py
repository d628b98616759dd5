"""The blocking collectives with gradients: what autograd records of them, and sends back through the ranks.

The loss of the job is the sum of the losses of its ranks. A tensor that went to several ranks has a part in each of
them, so that its gradient is the sum of what those ranks send back. All ranks ask for the gradients of the same
collectives, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from ringcore import Average, InvalidArgument
from ringcore.adapter import ProcessSet, ReduceOp, global_process_set, name_or_next, reduce_compressed, title_of

from ringcore_torch import _operations as plain
from ringcore_torch._linear import Allgather, Allreduce, Alltoall, Broadcast, LinearMap, Reducescatter
from ringcore_torch.compression import Compression, Compressor


def _tracked(*tensors: torch.Tensor) -> bool:
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgument(f"a tensor of PyTorch is needed, not {type(tensor).__name__}")
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _check_out(what: str, name: str | None, *tensors: torch.Tensor) -> None:
    if _tracked(*tensors):
        raise InvalidArgument(
            f"{title_of(what, name)}: a result that goes into out= has no gradient; leave it out, or call under "
            "torch.no_grad()"
        )


def _check_uncompressed(what: str, name: str | None, compression: type[Compressor]) -> None:
    if compression is not Compression.none:
        raise InvalidArgument(
            f"{title_of(what, name)}: what is compressed cannot go into out=; leave out one of the two"
        )


class _Recorded(torch.autograd.Function):
    """A linear map in autograd's graph. Its gradient is recorded as well: it has derivatives, too.

    The anchor, an output without elements, leads from a gradient to what it is the gradient of. Without it a rank whose
    loss is linear would leave out of its second derivatives what the others wait for.
    """

    @staticmethod
    def forward(ctx: Any, linear_map: LinearMap, _: torch.Tensor | None, *tensors: torch.Tensor) -> Any:
        anchor = tensors[0].new_empty(0, dtype=torch.float32)  # what is reduced may be integers
        ctx.linear_map = linear_map
        ctx.save_for_backward(anchor)
        return *linear_map.run(tensors), anchor

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        anchor = ctx.saved_tensors[0] if torch.is_grad_enabled() else None
        return None, None, *_run(ctx.linear_map.transposed(), grads[:-1], anchor)


def _run(
    linear_map: LinearMap, tensors: Sequence[torch.Tensor], anchor: torch.Tensor | None = None
) -> list[torch.Tensor]:
    if anchor is None and not _tracked(*tensors):
        return linear_map.run(tensors)
    results: list[torch.Tensor]
    *results, _ = _Recorded.apply(linear_map, anchor, *tensors)  # type: ignore[no-untyped-call]
    return results


def allreduce(
    tensor: torch.Tensor,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
    compression: type[Compressor] | str = Compression.none,
) -> torch.Tensor:
    """`ringcore.allreduce`, recorded by autograd where the tensor requires a gradient.

    Args:
        tensor: See `ringcore.allreduce`, as for the other options.
        op: Only `Average` and `Sum` have gradients.
        name: Identifies the tensor on all ranks.
        prescale_factor: Multiplied into the tensor before the reduction.
        postscale_factor: Multiplied into the result.
        process_set: The ranks that take part.
        out: See `ringcore.allreduce`; without a gradient, and without compression.
        compression: What is sent: see `Compression`.
    """
    compressor: type[Compressor] = Compression.chosen(compression)
    if out is not None:
        _check_out("allreduce", name, tensor)
        _check_uncompressed("allreduce", name, compressor)
        return plain.allreduce(
            tensor, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=out,
        )  # fmt: skip
    factors: dict[str, Any] = {
        "prescale_factor": prescale_factor, "postscale_factor": postscale_factor, "process_set": process_set,
    }  # fmt: skip
    compressed, dtype = compressor.compress(tensor)
    if not _tracked(compressed) and not compressor.quantised:
        return compressor.decompress(plain.allreduce(compressed, op=op, name=name, **factors), dtype)
    name = name_or_next(name, "allreduce", process_set)
    (result,) = _run(Allreduce(name, op, compressor, **factors), [compressed])
    return compressor.decompress(result, dtype)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Sequence[torch.Tensor] | None = None,
    compression: type[Compressor] | str = Compression.none,
) -> list[torch.Tensor]:
    """`allreduce` of several tensors that are released together: all of them run, or none."""
    compressor: type[Compressor] = Compression.chosen(compression)
    if out is not None:
        _check_out("grouped_allreduce", name, *tensors)
        _check_uncompressed("grouped_allreduce", name, compressor)
        return plain.grouped_allreduce(
            tensors, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=out,
        )  # fmt: skip
    if not tensors:
        return []
    factors: dict[str, Any] = {
        "prescale_factor": prescale_factor, "postscale_factor": postscale_factor, "process_set": process_set,
    }  # fmt: skip
    name = name_or_next(name, "grouped_allreduce", process_set)
    return reduce_compressed(compressor, tensors, partial(_run, Allreduce(name, op, compressor, **factors)))


def allgather(
    tensor: torch.Tensor,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Concatenate every rank's tensor along the first dimension, which may differ between ranks.

    Raises:
        MismatchError: Dtypes or other dimensions differ. On every rank.
    """
    if out is not None:
        _check_out("allgather", name, tensor)
        return plain.allgather(tensor, name=name, process_set=process_set, out=out)
    (result,) = _run(Allgather(name_or_next(name, "allgather", process_set), process_set), [tensor])
    return result


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """`allgather` of several tensors that are released together: all of them run, or none."""
    if out is not None:
        _check_out("grouped_allgather", name, *tensors)
        return plain.grouped_allgather(tensors, name=name, process_set=process_set, out=out)
    if not tensors:
        return []
    return _run(Allgather(name_or_next(name, "grouped_allgather", process_set), process_set), tensors)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """A new tensor with the root's values. See `ringcore.broadcast`."""
    if out is not None:
        _check_out("broadcast", name, tensor)
        return plain.broadcast(tensor, root_rank, name=name, process_set=process_set, out=out)
    (result,) = _run(Broadcast(name_or_next(name, "broadcast", process_set), root_rank, process_set), [tensor])
    return result


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> Any:
    """Send `splits[r]` rows to each rank r and receive theirs. See `ringcore.alltoall`."""
    if out is not None:
        _check_out("alltoall", name, tensor)
        return plain.alltoall(tensor, splits, name=name, process_set=process_set, out=out)
    linear_map = Alltoall(name_or_next(name, "alltoall", process_set), splits, process_set)
    (result,) = _run(linear_map, [tensor])
    return result if splits is None else (result, linear_map.counts)


def reducescatter(
    tensor: torch.Tensor,
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Reduce over all ranks; each gets its share of the rows (the first ones one more where rows do not divide)."""
    if out is not None:
        _check_out("reducescatter", name, tensor)
        return plain.reducescatter(
            tensor, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=out,
        )  # fmt: skip
    name = name_or_next(name, "reducescatter", process_set)
    (result,) = _run(
        Reducescatter(
            name, op, prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set
        ),
        [tensor],
    )
    return result


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    *,
    op: ReduceOp = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """`reducescatter` of several tensors that are released together: all of them run, or none."""
    if out is not None:
        _check_out("grouped_reducescatter", name, *tensors)
        return plain.grouped_reducescatter(
            tensors, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            process_set=process_set, out=out,
        )  # fmt: skip
    if not tensors:
        return []
    name = name_or_next(name, "grouped_reducescatter", process_set)
    return _run(
        Reducescatter(
            name, op, prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set
        ),
        tensors,
    )
