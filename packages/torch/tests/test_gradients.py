"""Gradients through the collectives, and gradients of those.

The ranks together are one function of all their inputs. Each rank holds all inputs and all outputs, so that PyTorch's
own checks run in step on all ranks, and see every derivative of every rank's outputs by every rank's inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import ringcore
import ringcore_torch as ring
import torch
from support.on_ranks import DEVICE, THREE, THREE_OVER_TCP, TWO, TWO_ON_GPUS, on

Function = Callable[[torch.Tensor], torch.Tensor]


class _Own(torch.autograd.Function):
    """Of the parts of all ranks, which all ranks hold, this rank's."""

    @staticmethod
    def forward(_: Any, *parts: torch.Tensor) -> torch.Tensor:
        return parts[ring.rank()].clone()

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> Any:
        return _Parts.apply(grad)


class _Parts(torch.autograd.Function):
    """The parts of all ranks, for all ranks."""

    @staticmethod
    def forward(_: Any, own: torch.Tensor) -> Any:
        return tuple(part.to(DEVICE) for part in ring.allgather_object(own.detach().cpu()))

    @staticmethod
    def backward(_: Any, *grads: torch.Tensor) -> Any:
        return _Own.apply(*grads)


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _same_rows() -> dict[str, Function]:
    """Functions of three rows on every rank."""
    size = ring.size()
    factors = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    return {
        "allreduce average": ring.allreduce,
        "allreduce sum": lambda x: ring.allreduce(x, op=ring.Sum, **factors),
        "grouped_allreduce": lambda x: _flat(ring.grouped_allreduce([x, x[:2] * x[1:]], op=ring.Sum, **factors)),
        **{f"broadcast {root}": lambda x, root=root: ring.broadcast(x, root) for root in range(size)},
        "broadcast of complex numbers": lambda x: torch.view_as_real(ring.broadcast(torch.polar(x, x**2), 0)),
        "alltoall": lambda x: ring.alltoall(x, [1] + [0] * (size - 2) + [2])[0],
        "alltoall evenly": lambda x: ring.alltoall(torch.cat([x, 2 * x])[: 2 * size]),
        "reducescatter average": lambda x: ring.reducescatter(torch.cat([x, x[:1]]), **factors),
        "reducescatter sum": lambda x: ring.reducescatter(torch.cat([x, x[:2]]), op=ring.Sum),
        "gradient of reducescatter": lambda x: _gradient(lambda x: ring.reducescatter(x, **factors), x),
        "gradient of broadcast": lambda x: _gradient(lambda x: ring.broadcast(x, 1), x),
        "grouped_reducescatter": lambda x: _flat(ring.grouped_reducescatter([x[:2], x * x], **factors)),
    }


def _gradient(function: Function, x: torch.Tensor) -> torch.Tensor:
    """A gradient as a function, whose second derivatives are the third ones of what it is the gradient of."""
    (gradient,) = torch.autograd.grad((function(x) ** 3).sum(), x, create_graph=True)
    return gradient


def _other_rows() -> dict[str, Function]:
    """Functions of another number of rows on every rank, of none on rank 0."""
    return {
        "allgather": ring.allgather,
        "grouped_allgather": lambda x: _flat(ring.grouped_allgather([x, 2 * x.sum()])),
    }


def _among_some(some: ring.ProcessSet) -> dict[str, Function]:
    """Functions in which the last of three ranks takes no part."""
    of_members: dict[str, Function] = {
        "allreduce of two": lambda x: ring.allreduce(x, process_set=some),
        "allgather of two": lambda x: ring.allgather(x[1 + ring.rank() :], process_set=some),
        "broadcast of two": lambda x: ring.broadcast(x, 1, process_set=some),
        "reducescatter of two": lambda x: ring.reducescatter(x, op=ring.Sum, process_set=some),
        "alltoall of two": lambda x: ring.alltoall(x, [1, 2], process_set=some)[0],
    }
    return of_members if some.included() else dict.fromkeys(of_members, torch.sin)


def check(function: Function, rows: Callable[[int], int] = lambda _: 3) -> None:
    """Compare the first and second derivatives with differences."""

    def of_all(*parts: torch.Tensor) -> Any:
        x = _Own.apply(*parts)
        return _Parts.apply(function(x * x))

    torch.manual_seed(0)  # the checks draw directions, the same on all ranks
    parts = tuple(torch.randn(rows(rank), dtype=torch.float64, requires_grad=True) for rank in range(ring.size()))
    for derivative in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert derivative(of_all, parts, check_undefined_grad=False, fast_mode=True)


@on(TWO, THREE, TWO_ON_GPUS)
def test_first_and_second_derivatives() -> None:
    for function in _same_rows().values():
        check(function)


@on(TWO, THREE, TWO_ON_GPUS)
def test_derivatives_of_other_numbers_of_rows_on_every_rank_and_none_on_rank_0() -> None:
    for function in _other_rows().values():
        check(function, lambda rank: rank)


@on(THREE_OVER_TCP)
def test_derivatives_where_a_rank_takes_no_part() -> None:
    some = ring.add_process_set([0, 1])
    for function in _among_some(some).values():
        check(function)
    ring.remove_process_set(some)


@on(TWO, THREE, TWO_ON_GPUS)
def test_a_linear_loss_takes_part_in_the_second_derivatives_of_others() -> None:
    size = ring.size()
    x = torch.tensor([1.0 + ring.rank()], dtype=torch.float64, requires_grad=True)
    y = ring.allreduce(x, op=ring.Sum)
    loss = (y**3 if ring.rank() == 0 else 2 * y).sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    total = sum(range(1, size + 1))
    # The losses are y^3 and, size - 1 times, 2 y; each rank's own first derivative is derived by all inputs.
    assert first.tolist() == [3 * total**2 + 2 * (size - 1)]
    assert second.tolist() == [size * 6 * total]


@on(TWO, THREE, TWO_ON_GPUS)
@pytest.mark.parametrize("op", [ring.Min, ring.Max, ring.Product])
@pytest.mark.parametrize("verb", [ring.allreduce, ring.reducescatter])
def test_what_has_no_gradient_says_so(verb: Any, op: Any) -> None:
    result = verb(torch.ones(3, requires_grad=True), op=op)
    told = rf"^{verb.__name__} '{verb.__name__}\..*with op={op.name} has no gradient"
    with pytest.raises(ringcore.InvalidArgument, match=told):
        result.sum().backward()


@on(TWO, THREE, TWO_ON_GPUS)
def test_what_has_no_gradient_to_give_lets_the_others_through_and_backward_runs_again() -> None:
    x = torch.ones(2, requires_grad=True)
    gathered = ring.grouped_allgather([torch.ones(1, dtype=torch.int64), x])
    gathered[1].sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [float(ring.size())] * 2
    once = ring.allreduce(torch.ones(2, requires_grad=True))
    for _ in range(2):
        once.sum().backward()  # nothing was saved that the first one could have freed
