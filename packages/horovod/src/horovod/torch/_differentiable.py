"""Operations that wait for their results, with Horovod's gradients, which are differentiable themselves.

They are not the derivatives of the sum of all ranks' losses, as ringcore's are: what comes back of a tensor that went
to all ranks is averaged. Scripts have learning rates that fit to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ringcore_torch as ring
import torch
from ringcore.adapter import reduce_compressed

from horovod.torch._operations import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    Handle,
    Options,
    Verb,
    start,
)

Tensors = list[Any]
# From an operation that has ended: what makes the gradients of its tensors from those of its results.
Gradient = Callable[[Handle], Callable[[Tensors], Sequence[torch.Tensor]]]

_UNSCALED = {"prescale_factor": 1.0, "postscale_factor": 1.0}


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, verb: Verb, options: Options, gradient: Gradient, *tensors: torch.Tensor) -> Any:
        handle = start(verb, list(tensors), options, waits=True)
        results = handle.results()
        ctx.gradient = gradient(handle)
        if verb is ALLTOALL:
            ctx.mark_non_differentiable(results[0][1])
            return results[0]
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, None, None, *ctx.gradient(list(grads))


def _run(verb: Verb, tensors: Tensors, options: Options, gradient: Gradient) -> Tensors:
    def run(sent: Tensors) -> Tensors:
        if not torch.is_grad_enabled() or not any(isinstance(one, torch.Tensor) and one.requires_grad for one in sent):
            return start(verb, sent, options, waits=True).results()
        results = list(_Recorded.apply(verb, options, gradient, *sent))  # type: ignore[no-untyped-call]
        return [tuple(results)] if verb is ALLTOALL else results

    return reduce_compressed(options.compression, tensors, run)


def _back(handle: Handle, options: Options, **own: Any) -> Options:
    """For an operation of the backward pass."""
    return Options(f"{handle.name}.gradient", options.process_set, own)


def _averaged(handle: Handle, options: Options) -> Options:
    return _back(handle, options, op=ring.Average, **_UNSCALED)


def allreduce(tensors: Tensors, options: Options) -> Tensors:
    """Reduce them; so are their gradients."""
    return _run(
        ALLREDUCE, tensors, options,
        lambda handle: lambda grads: allreduce(grads, _back(handle, options, **options.own)),
    )  # fmt: skip


def allgather(tensors: Tensors, options: Options) -> Tensors:
    """Concatenate all ranks'; of the average of the results' gradients each rank gets its own rows."""

    def gradient(handle: Handle) -> Callable[[Tensors], Sequence[torch.Tensor]]:
        me = options.process_set.rank()
        rows = [handle.started.rows(i) for i in range(len(tensors))]
        parts = [(sum(counts[:me]), counts[me]) for counts in rows]
        shapes = [tensor.shape for tensor in tensors]
        averaged = _averaged(handle, options)
        return lambda grads: [
            average.narrow(0, *part).reshape(shape)
            for average, part, shape in zip(allreduce(grads, averaged), parts, shapes, strict=True)
        ]

    return _run(ALLGATHER, tensors, options, gradient)


def broadcast(tensors: Tensors, options: Options) -> Tensors:
    """Give all ranks the root's; it gets the average of the results' gradients."""

    def gradient(handle: Handle) -> Callable[[Tensors], Sequence[torch.Tensor]]:
        factor = float(ring.rank() == options.own["root_rank"])
        averaged = _averaged(handle, options)
        return lambda grads: [average * factor for average in allreduce(grads, averaged)]

    return _run(BROADCAST, tensors, options, gradient)


def alltoall(tensors: Tensors, options: Options) -> Tensors:
    """Send rows to each rank; the gradients go the same way back."""

    def gradient(handle: Handle) -> Callable[[Tensors], Sequence[torch.Tensor]]:
        back = _back(handle, options, splits=handle.started.rows())
        return lambda grads: [alltoall(grads[:1], back)[0][0]]

    return _run(ALLTOALL, tensors, options, gradient)


def reducescatter(tensors: Tensors, options: Options) -> Tensors:
    """Reduce them and deal out the rows; gradients are gathered, and of a sum multiplied by the number of ranks."""

    def gradient(handle: Handle) -> Callable[[Tensors], Sequence[torch.Tensor]]:
        factor = options.own["prescale_factor"] * options.own["postscale_factor"]
        if options.own["op"] is ring.Sum:
            factor *= options.process_set.size()
        back = _back(handle, options)
        return lambda grads: allgather([grad * factor for grad in grads], back)

    return _run(REDUCESCATTER, tensors, options, gradient)
