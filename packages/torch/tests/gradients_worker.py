"""Gradients through the collectives, and their gradients: `python gradients_worker.py FOLDER CASE...` as worker.py.

The ranks together are one function of all their inputs. Each rank holds all inputs and all outputs, so that PyTorch's
own checks run in step on all ranks, and see every derivative of every rank's outputs by every rank's inputs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ringcore
import ringcore_torch as ring
import torch

# Where tensors are made that do not say it: "cpu" or "cuda".
DEVICE = os.environ.get("TEST_DEVICE", "cpu")

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


def _passes(function: Function, rows: Callable[[int], int]) -> bool:
    def of_all(*parts: torch.Tensor) -> Any:
        x = _Own.apply(*parts)
        return _Parts.apply(function(x * x))

    torch.manual_seed(0)  # the checks draw directions, the same on all ranks
    parts = tuple(torch.randn(rows(rank), dtype=torch.float64, requires_grad=True) for rank in range(ring.size()))
    checks = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    options = {"check_undefined_grad": False, "raise_exception": False, "fast_mode": True}
    return all(check(of_all, parts, **options) for check in checks)


def derivatives() -> dict[str, bool]:
    """The first and second derivatives of all collectives against differences."""
    found = {what: _passes(function, lambda _: 3) for what, function in _same_rows().items()}
    found |= {what: _passes(function, lambda rank: rank) for what, function in _other_rows().items()}
    if ring.size() > 2:
        some = ring.add_process_set([0, 1])
        found |= {what: _passes(function, lambda _: 3) for what, function in _among_some(some).items()}
    return found


def one_linear_loss() -> dict[str, Any]:
    """Second derivatives where one rank's loss has none of its own: it takes part in those of the others."""
    x = torch.tensor([1.0 + ring.rank()], dtype=torch.float64, requires_grad=True)
    y = ring.allreduce(x, op=ring.Sum)
    loss = (y**3 if ring.rank() == 0 else 2 * y).sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return {"first": first.tolist(), "second": second.tolist()}


def without_gradients() -> dict[str, Any]:
    """What has no gradient says so; what has none to give lets the others' through."""
    found: dict[str, Any] = {}
    x = torch.ones(2, requires_grad=True)
    for op in (ring.Min, ring.Max, ring.Product):
        for verb in (ring.allreduce, ring.reducescatter):
            result = verb(x, op=op)
            try:
                result.sum().backward()
            except ringcore.InvalidArgument as error:
                found[f"{verb.__name__} {op.name}"] = str(error)
    gathered = ring.grouped_allgather([torch.ones(1, dtype=torch.int64), x])
    gathered[1].sum().backward()
    found["beside integers"] = x.grad.tolist()
    once = ring.allreduce(torch.ones(2, requires_grad=True))
    for _ in range(2):
        once.sum().backward()  # nothing was saved that the first one could have freed
    return found


if __name__ == "__main__":
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.set_default_device(DEVICE)
    ring.init()
    for name in sys.argv[2:]:
        outcome = globals()[name]()
        Path(sys.argv[1], f"{name}.{ring.rank()}.json").write_text(json.dumps(outcome))
    ring.shutdown()
