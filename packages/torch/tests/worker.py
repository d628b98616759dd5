"""What one rank of a test does: `python worker.py CASE FOLDER` writes the case's findings to FOLDER/<rank>.json."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ringcore
import ringcore_torch as ring
import torch

DTYPES = [
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
]  # fmt: skip
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3, 5), (40, 1000)]


def mark(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Rank r's contribution: 2^r everywhere (True on rank 0 alone for bool)."""
    return (
        torch.full(shape, 2 ** ring.rank()).to(dtype)
        if dtype is not torch.bool
        else torch.full(shape, ring.rank() == 0)
    )


def operations() -> dict[str, Any]:
    """Every collective on every dtype and shape; names what went wrong."""
    wrong = []
    rank, size = ring.rank(), ring.size()
    for dtype in DTYPES:
        for shape in SHAPES:
            where = f"{dtype} {shape}"
            total = torch.full(shape, 2**size - 1).to(dtype)
            mine = mark(shape, dtype)
            for result in (
                ring.allreduce(mine, op=ring.Sum, name=where),
                ring.synchronize(ring.allreduce_async(mine, op=ring.Sum, name=where)),
                ring.allreduce_(mine.clone(), op=ring.Sum, name=where),
                ring.synchronize(ring.allreduce_async_(mine.clone(), op=ring.Sum, name=where)),
                *ring.grouped_allreduce([mine, mine], op=ring.Sum, name=where),
            ):
                if not torch.equal(result, total) or result.dtype is not dtype:
                    wrong.append(f"allreduce {where}")
            for root in range(size):
                expected = mark(shape, dtype) if root == rank else torch.zeros(shape)
                got = ring.broadcast(mine, root, name=where)
                if root == rank and not torch.equal(got, expected):
                    wrong.append(f"broadcast {where}")
            if not shape:
                continue
            gathered = ring.allgather(mine[: rank + 1], name=where)
            rows = sum(min(shape[0], r + 1) for r in range(size))
            if gathered.shape != (rows, *shape[1:]) or gathered.dtype is not dtype:
                wrong.append(f"allgather {where}")
            share = ring.reducescatter(mine, op=ring.Sum, name=where)
            if share.numel() and not bool((share == total.flatten()[0]).all()):
                wrong.append(f"reducescatter {where}")
            splits = [shape[0] - shape[0] // 2, shape[0] // 2] + [0] * (size - 2)
            rows_received, counts = ring.alltoall(mine, splits, name=where)
            if rows_received.shape[0] != int(counts.sum()) or counts.tolist() != [splits[rank]] * size:
                wrong.append(f"alltoall {where}")
    strided = torch.arange(12.0).reshape(3, 4).t()
    if not torch.equal(
        ring.allreduce_(strided, op=ring.Sum, name="strided"), torch.arange(12.0).reshape(3, 4).t() * size
    ):
        wrong.append("a transposed tensor in place")
    parameter = torch.nn.Parameter(torch.ones(3))
    if not torch.equal(ring.broadcast_(parameter, 0, name="parameter").detach(), torch.ones(3)):
        wrong.append("a tensor that requires grad")
    return {"wrong": wrong}


class Net(torch.nn.Module):
    """A net with a layer that nobody uses and one that only rank 0 uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3))
        self.nobody = torch.nn.Linear(2, 2)
        self.first = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        y = self.body(x)
        return self.first(y) if rank == 0 else y


def batches(passes: int = 1) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """For each step: (x, y) of every rank and pass, rank-major."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        yield [
            (
                torch.randn(4, 10, generator=generator, dtype=torch.float64),
                torch.randn(4, 3, generator=generator, dtype=torch.float64),
            )
            for _ in range(ring.size() * passes)
        ]


def train(make: Callable[[Any], torch.optim.Optimizer], passes: int = 1, clip: bool = False) -> dict[str, Any]:
    """Train distributed and, beside it, alone on all ranks' batches; compare."""
    torch.manual_seed(ring.rank())
    model = Net().double()
    ring.broadcast_parameters(model.state_dict(), root_rank=0)
    alone = copy.deepcopy(model)
    reference = make(alone.parameters())
    optimizer = ring.DistributedOptimizer(
        make(model.parameters()), named_parameters=model.named_parameters(), backward_passes_per_step=passes
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    reference_scheduler = torch.optim.lr_scheduler.StepLR(reference, 3)
    rank, size = ring.rank(), ring.size()
    loss_of = torch.nn.functional.mse_loss
    for step in batches(passes):
        optimizer.zero_grad()
        for x, y in step[rank * passes : (rank + 1) * passes]:
            loss_of(model(x, rank), y).backward()
        reference.zero_grad()
        sum(loss_of(alone(x, i // passes), y) for i, (x, y) in enumerate(step)).div(size).backward()
        if clip:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        reference.step()
        scheduler.step()
        reference_scheduler.step()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    every = ring.allgather(flat[None], name="flat")
    return {
        "difference": max((a - b).abs().max().item() for a, b in pairs),
        "equal": bool((every == every[0]).all()),
        "nobody": model.nobody.weight.grad is None,
        "class": isinstance(optimizer, type(reference)),
    }


def sgd() -> dict[str, Any]:
    return train(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


def adamw() -> dict[str, Any]:
    return train(lambda p: torch.optim.AdamW(p, lr=0.01))


def accumulate() -> dict[str, Any]:
    return train(lambda p: torch.optim.SGD(p, lr=0.05), passes=3)


def clip() -> dict[str, Any]:
    return train(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), clip=True)


def states() -> dict[str, Any]:
    """Optimizer state of rank 0 on all ranks, for several optimizers."""
    found = {}
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad):
        torch.manual_seed(ring.rank())
        model = torch.nn.Linear(4, 2)
        optimizer = make(model.parameters(), lr=0.1 * (1 + ring.rank()))
        if ring.rank() == 0:  # the others have not stepped yet
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        ring.broadcast_optimizer_state(optimizer, root_rank=0)
        text = json.dumps(
            optimizer.state_dict(),
            default=lambda t: t.tolist() if isinstance(t, torch.Tensor) else str(t),
            sort_keys=True,
        )
        found[make.__name__] = len(set(ring.allgather_object(text))) == 1
    return found


def mistakes() -> dict[str, Any]:
    """What misuse says, and that training goes on afterwards."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    found = {}
    model(torch.ones(1, 3)).sum().backward()
    try:
        model(torch.ones(1, 3)).sum().backward()
    except ringcore.InvalidArgument as error:
        found["twice"] = str(error)
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    try:
        ring.allreduce(torch.ones(3, dtype=torch.complex64), name="complex")
    except ringcore.InvalidArgument as error:
        found["complex"] = str(error)
    try:
        ring.allreduce(torch.ones(3, device="meta"), name="meta")
    except ringcore.InvalidArgument as error:
        found["device"] = str(error)
    other = torch.nn.Linear(3, 1)
    second = ring.DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=0.1), other.named_parameters())
    for turn in range(4):
        net, its = (model, optimizer) if turn % 2 else (other, second)
        its.zero_grad()
        net(torch.full((1, 3), float(ring.rank()))).sum().backward()
        its.step()
    weights = torch.cat([model.weight, other.weight]).detach()[None]
    every = ring.allgather(weights, name="weights")
    return {**found, "equal": bool((every == every[0]).all())}


if __name__ == "__main__":
    ring.init()
    outcome = globals()[sys.argv[1]]()
    Path(sys.argv[2], f"{ring.rank()}.json").write_text(json.dumps(outcome))
    ring.shutdown()
