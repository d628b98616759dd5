"""What one rank of a test does: `python worker.py FOLDER CASE...` writes findings to FOLDER/<case>.<rank>.json."""

from __future__ import annotations

import copy
import json
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import ringcore
import ringcore_torch as ring
import torch
from torch.testing._internal.two_tensor import TwoTensor

DTYPES = [
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
]  # fmt: skip
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3, 5), (40, 1000)]


# Where tensors are made that do not say it: "cpu" or "cuda".
DEVICE = os.environ.get("TEST_DEVICE", "cpu")

# Columns of a matrix that is large enough for a bucket in registered memory.
WIDE = 4000


def refusal(call: Callable[[], Any]) -> str:
    """What it says when it refuses."""
    try:
        call()
    except ringcore.InvalidArgument as error:
        return str(error)
    return "it was accepted"


def drawn(*shape: int, generator: torch.Generator) -> torch.Tensor:
    """Random numbers of float64, the same on every device."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE)


def equal_on_all_ranks(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all ranks have the same bits."""
    every = ring.allgather(torch.cat([tensor.detach().flatten() for tensor in tensors])[None], name="equal")
    return bool((every == every[0]).all())


def mark(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Rank r's contribution: 2^r everywhere (True on rank 0 alone for bool)."""
    values = (
        torch.full(shape, 2 ** ring.rank(), device="cpu").to(dtype)
        if dtype is not torch.bool
        else torch.full(shape, ring.rank() == 0, device="cpu")
    )
    return values.to(DEVICE)


def operations() -> dict[str, Any]:
    """Every collective on every dtype and shape; names what went wrong."""
    wrong = []
    rank, size = ring.rank(), ring.size()
    for dtype in DTYPES:
        for shape in SHAPES:
            where = f"{dtype} {shape}"
            total = torch.full(shape, 2**size - 1, device="cpu").to(dtype)
            mine = mark(shape, dtype)
            for result in (
                ring.allreduce(mine, op=ring.Sum, name=where),
                ring.synchronize(ring.allreduce_async(mine, op=ring.Sum, name=where)),
                ring.allreduce_(mine.clone(), op=ring.Sum, name=where),
                ring.synchronize(ring.allreduce_async_(mine.clone(), op=ring.Sum, name=where)),
                *ring.grouped_allreduce([mine, mine], op=ring.Sum, name=where),
            ):
                if not torch.equal(result.cpu(), total) or result.dtype is not dtype or result.device != mine.device:
                    wrong.append(f"allreduce {where}")
            for root in range(size):
                got = ring.broadcast(mine, root, name=where)
                if root == rank and not torch.equal(got.cpu(), mark(shape, dtype).cpu()):
                    wrong.append(f"broadcast {where}")
            if not shape:
                continue
            gathered = ring.allgather(mine[: rank + 1], name=where)
            rows = sum(min(shape[0], r + 1) for r in range(size))
            if gathered.shape != (rows, *shape[1:]) or gathered.dtype is not dtype:
                wrong.append(f"allgather {where}")
            share = ring.reducescatter(mine, op=ring.Sum, name=where)
            if share.numel() and not bool((share.cpu() == total.flatten()[0]).all()):
                wrong.append(f"reducescatter {where}")
            splits = [shape[0] - shape[0] // 2, shape[0] // 2] + [0] * (size - 2)
            rows_received, counts = ring.alltoall(mine, splits, name=where)
            if rows_received.shape[0] != int(counts.sum()) or counts.tolist() != [splits[rank]] * size:
                wrong.append(f"alltoall {where}")
    # Each rank sends other numbers of rows.
    rows_received, counts = ring.alltoall(torch.full((size * (rank + 1), 2), rank), [rank + 1] * size, name="uneven")
    if counts.tolist() != list(range(1, size + 1)) or rows_received[:, 0].bincount().tolist() != counts.tolist():
        wrong.append("alltoall of other numbers of rows from each rank")
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
        # The first matrix is large enough for a bucket in registered memory, the others are packed by the engine.
        self.body = torch.nn.Sequential(torch.nn.Linear(10, 500), torch.nn.Tanh(), torch.nn.Linear(500, 3))
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
                drawn(4, 10, generator=generator),
                drawn(4, 3, generator=generator),
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
    """Optimizer state of rank 0 on all ranks, for every optimizer of torch.optim."""
    found = {}
    optimizers = [
        kind for kind in vars(torch.optim).values() if isinstance(kind, type) and kind is not torch.optim.Optimizer
    ]
    for make in optimizers:
        torch.manual_seed(ring.rank())
        model = torch.nn.Linear(4, 2, bias=make is not torch.optim.Muon)  # which takes matrices only
        if make is torch.optim.SparseAdam:
            model = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = make(model.parameters(), lr=0.1 * (1 + ring.rank()))

        def loss(model: torch.nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            inputs = torch.tensor([1]) if isinstance(model, torch.nn.Embedding) else torch.ones(1, 4)
            total = model(inputs).square().sum()
            total.backward()
            return total

        if ring.rank() == 0:  # the others have not stepped yet
            optimizer.step(loss)
        ring.broadcast_optimizer_state(optimizer, root_rank=0)
        text = json.dumps(
            optimizer.state_dict(),
            default=lambda t: t.tolist() if isinstance(t, torch.Tensor) else str(t),
            sort_keys=True,
        )
        found[make.__name__] = len(set(ring.allgather_object(text))) == 1
    return found


def from_a_root() -> dict[str, Any]:
    """Parameters and optimizer state are those of the rank that is named."""
    found: dict[str, Any] = {}
    rank = ring.rank()
    for root in range(ring.size()):
        model = torch.nn.BatchNorm1d(3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(10.0 * root + rank)
        model.num_batches_tracked.fill_(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0 + rank, momentum=0.5)
        model.weight.grad = torch.full((3,), 1.0 + rank)
        optimizer.step()
        ring.broadcast_parameters(model.state_dict(), root_rank=root)
        ring.broadcast_optimizer_state(optimizer, root_rank=root)
        weights, state = model.weight.unique().tolist(), optimizer.state[model.weight]
        found[f"weight {root}"] = weights == [11.0 * root - (1.0 + root) ** 2]
        found[f"buffer {root}"] = model.num_batches_tracked.item() == root
        found[f"rate {root}"] = optimizer.param_groups[0]["lr"] == 1.0 + root
        found[f"momentum {root}"] = state["momentum_buffer"].tolist() == [1.0 + root] * 3
        found[f"device {root}"] = state["momentum_buffer"].device == model.weight.device
    return found


def adasum() -> dict[str, Any]:
    """Adasum of tensors, and an optimizer whose ranks' steps are combined."""
    rank = ring.rank()
    own = torch.tensor([1.0, 0.0]) if rank == 0 else torch.tensor([1.0, 1.0])
    found: dict[str, Any] = {
        "allreduce": ring.allreduce(own, op=ring.Adasum).tolist(),
        "in place": ring.allreduce_(own.clone().bfloat16(), op=ring.Adasum).tolist(),
        "async": ring.synchronize(ring.allreduce_async_(own[None].repeat(2, 1)[:, :1], op=ring.Adasum)).tolist(),
        "grouped": [tensor.tolist() for tensor in ring.grouped_allreduce([own, own.double()], op=ring.Adasum)],
        "integers": refusal(lambda: ring.allreduce(torch.ones(2, dtype=torch.int32), op=ring.Adasum)),
    }
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1, bias=False).double()
    start = model.weight.detach().clone()
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), op=ring.Adasum
    )
    model(own.double()).sum().backward()  # the gradient is the input
    optimizer.step()
    found["step"] = ((start - model.weight.detach()) / 0.5)[0].tolist()
    found["passes"] = refusal(
        lambda: ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), backward_passes_per_step=2, op=ring.Adasum
        )
    )
    return found


def compression() -> dict[str, Any]:
    """What is sent in 16 bits, and that training with it ends equal on all ranks."""
    found = {}
    x = torch.tensor([1.0, 1 + 2**-9, 1000.0]) * (ring.rank() + 1)
    for name in ("none", "fp16", "bf16"):
        method = getattr(ring.Compression, name)
        result = ring.allreduce(x, op=ring.Sum, compression=method, name=name)
        found[name] = [result.tolist(), str(result.dtype)]
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=method
        )
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.full((1, 3), ring.rank() + 1.0)).sum().backward()
            optimizer.step()
        every = ring.allgather(model.weight.detach()[None], name=f"weights {name}")
        found[f"{name} weights"] = [bool((every == every[0]).all()), model.weight.detach().tolist()]
    return found


def sparse() -> dict[str, Any]:
    """Sparse tensors, and an embedding whose rows some ranks use: like one rank with all batches."""
    rank, size = ring.rank(), ring.size()
    own = torch.sparse_coo_tensor(torch.tensor([[rank, 3]]), torch.tensor([[1.0, 2.0], [10.0, 20.0]]), (5, 2))
    total = ring.sparse_allreduce_async(own, op=ring.Sum, name="rows")().to_dense()
    expected = sum(
        torch.sparse_coo_tensor(torch.tensor([[r, 3]]), torch.tensor([[1.0, 2.0], [10.0, 20.0]]), (5, 2)).to_dense()
        for r in range(size)
    )
    found: dict[str, Any] = {"rows": bool(torch.equal(total, expected))}
    for as_dense in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(20, 4, sparse=True), torch.nn.Linear(4, 1)).double()
        alone = copy.deepcopy(model)
        optimizer = ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), sparse_as_dense=as_dense
        )
        reference = torch.optim.SGD(alone.parameters(), lr=0.5)
        for step in range(4):
            words = [torch.tensor([[(5 * r + step) % 20, 7]]) for r in range(size)]
            optimizer.zero_grad()
            if not (step == 2 and rank == 1):  # this rank has no batch
                model(words[rank]).sum().backward()
            optimizer.step()
            kind = model[0].weight.grad.layout
            reference.zero_grad()
            losses = [alone(w).sum() for r, w in enumerate(words) if not (step == 2 and r == 1)]
            (sum(losses) / size).backward()
            reference.step()
            found[f"layout {as_dense} {step}"] = str(kind)
        pairs = zip(model.parameters(), alone.parameters(), strict=True)
        found[f"difference {as_dense}"] = max((a - b).abs().max().item() for a, b in pairs)
    return found


def sync_batch_norm() -> dict[str, Any]:
    """Forward, backward and running statistics against one BatchNorm over all ranks' batches."""
    rank, size = ring.rank(), ring.size()
    batches = [drawn(3 + 2 * r, 4, 5, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    torch.manual_seed(0)
    ours, reference = ring.SyncBatchNorm(4).double(), torch.nn.BatchNorm1d(4).double()
    worst = 0.0
    for _ in range(2):
        x, everything = batches[rank].clone().requires_grad_(), torch.cat(batches).requires_grad_()
        out, expected = ours(x), reference(everything)
        begin = sum(len(batch) for batch in batches[:rank])
        mine = slice(begin, begin + len(x))
        (out**3).sum().backward()
        (expected**3).sum().backward()
        differences = [
            out - expected[mine], x.grad - everything.grad[mine], ours.running_mean - reference.running_mean,
            ours.running_var - reference.running_var,
            ring.allreduce(ours.weight.grad, op=ring.Sum, name="w") - reference.weight.grad,
        ]  # fmt: skip
        worst = max([worst, *(difference.abs().max().item() for difference in differences)])
        ours.zero_grad()
        reference.zero_grad()
    ours.eval(), reference.eval()
    worst = max(worst, (ours(batches[0]) - reference(batches[0])).abs().max().item())
    # More values of a channel than a 16-bit float counts, and whose sum it cannot hold.
    everything = drawn(size * 8, 2, 50, 50, generator=torch.Generator().manual_seed(0)) + 30
    halves = {}
    for dtype in (torch.float16, torch.bfloat16):
        layer, x = ring.SyncBatchNorm(2), everything.to(dtype)
        out = layer(x.chunk(size)[rank])
        expected = torch.nn.BatchNorm2d(2)(x.float()).chunk(size)[rank]
        halves[str(dtype)] = [str(out.dtype), (out.float() - expected).abs().max().item()]
    return {"worst": worst, "batches": int(ours.num_batches_tracked), "halves": halves}


def groups() -> dict[str, Any]:
    """Groups by number and by lists give the same training; what is no group is refused."""
    found: dict[str, Any] = {}
    weights = []
    for kind in ("none", "number", "lists"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3), torch.nn.Linear(3, 1)).double()
        parameters = list(model.parameters())
        chosen = {"none": None, "number": 2, "lists": [parameters[:3], [parameters[5]]]}[kind]
        optimizer = ring.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=0.1), model.named_parameters(), groups=chosen
        )
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((2, 4), 1.0 + ring.rank() + step, dtype=torch.float64)).sum().backward()
            optimizer.step()
        weights.append(torch.cat([parameter.detach().flatten() for parameter in parameters]))
        found[kind] = len(optimizer._ring._buckets)
    found["equal"] = all(torch.equal(weights[0], other) for other in weights[1:])
    for name, wrong in {"zero": 0, "foreign": [[torch.nn.Parameter(torch.ones(1))]]}.items():
        try:
            ring.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), model.named_parameters(), groups=wrong)
        except ringcore.InvalidArgument as error:
            found[name] = str(error)
    return found


def left_out() -> dict[str, Any]:
    """A layer that a rank does not use in a step counts as zero there, also when it was used in the step before."""
    found: dict[str, Any] = {}
    for width in (2, WIDE):
        layers = torch.nn.ModuleList(torch.nn.Linear(3, width, bias=False) for _ in range(2))
        optimizer = ring.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=0.0), layers.named_parameters())
        for step in range(3):
            optimizer.zero_grad(set_to_none=step == 1)
            used = layers if step == 0 or ring.rank() == 0 else layers[:1]
            sum(layer(torch.ones(1, 3)).sum() for layer in used).backward()
            if step == 2 and ring.rank() > 0:
                layers[1].weight.grad = None
            optimizer.step()
            expected = 1.0 if step == 0 else 1.0 / ring.size()
            found[f"{width} {step}"] = layers[1].weight.grad.unique().tolist() == [expected]
    return found


def predivided() -> dict[str, Any]:
    """An average that is divided before and after the sum is the average, of dense and of sparse gradients."""
    found: dict[str, Any] = {}
    average = sum(range(1, ring.size() + 1)) / ring.size()
    for rows in (2, WIDE):
        dense, sparse = torch.nn.Linear(rows, 3, bias=False), torch.nn.Embedding(rows, 3, sparse=True)
        model = torch.nn.ModuleList([dense, sparse])
        optimizer = ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), gradient_predivide_factor=4.0
        )
        scale = ring.rank() + 1.0
        (scale * (dense(torch.ones(1, rows)).sum() + sparse(torch.tensor([1])).sum())).backward()
        optimizer.step()
        found[f"dense {rows}"] = dense.weight.grad.unique().tolist() == [average]
        found[f"sparse {rows}"] = sparse.weight.grad.coalesce().values().tolist() == [[average] * 3]
    return found


def grouped_rows() -> dict[str, Any]:
    """grouped_allgather and grouped_reducescatter."""
    rank, size = ring.rank(), ring.size()
    gathered = ring.grouped_allgather([torch.full((rank + 1,), float(rank)), torch.full((1, 2), rank)], name="g")
    shares = ring.grouped_reducescatter([torch.arange(6.0), torch.ones(size, 2)], op=ring.Sum, name="s")
    return {
        "gathered": [tensor.flatten().tolist() for tensor in gathered],
        "shares": [tensor.flatten().tolist() for tensor in shares],
    }


def mistakes() -> dict[str, Any]:
    """What misuse says, and that training goes on afterwards."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, WIDE)
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    found = {}
    model(torch.ones(1, 3)).sum().backward()
    found["twice"] = refusal(lambda: model(torch.ones(1, 3)).sum().backward())
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    found["clipped"] = refusal(optimizer.step)
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    waves = [("waves", torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64)))]
    for op in (ring.Sum, ring.Adasum):
        found[f"waves {op.name}"] = refusal(
            lambda op=op: ring.DistributedOptimizer(torch.optim.SGD([waves[0][1]], lr=1.0), waves, op=op)
        )
    found["complex"] = refusal(lambda: ring.allreduce(torch.ones(3, dtype=torch.complex64), name="complex"))
    found["device"] = refusal(lambda: ring.allreduce(torch.ones(3, device="meta"), name="meta"))
    found["list"] = refusal(lambda: ring.allreduce([1.0], name="list"))
    found["text"] = refusal(lambda: ring.grouped_allreduce_async([torch.ones(1), "x"], name="text"))
    other = torch.nn.Linear(3, WIDE)
    second = ring.DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=0.1), other.named_parameters())
    for turn in range(4):
        net, its = (model, optimizer) if turn % 2 else (other, second)
        its.zero_grad()
        net(torch.full((1, 3), float(ring.rank()))).sum().backward()
        its.step()
    return {**found, "equal": equal_on_all_ranks([*model.parameters(), *other.parameters()])}


def changed_models() -> dict[str, Any]:
    """A model that is copied, pickled, moved or wrapped again after its optimizer was wrapped."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, WIDE)
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    inputs = torch.full((1, 3), float(ring.rank()))
    model(inputs).sum().backward()
    optimizer.step()
    found: dict[str, Any] = {}
    for name, twin in {"copied": copy.deepcopy(model), "pickled": pickle.loads(pickle.dumps(model))}.items():
        twin.zero_grad()
        twin(inputs).sum().backward()  # on its own: nothing is averaged
        found[name] = twin.weight.grad[0].tolist() == [float(ring.rank())] * 3
    found["copied optimizer"] = refusal(copy.deepcopy(optimizer).step)
    model.double()
    optimizer.zero_grad()
    found["moved"] = refusal(lambda: model(inputs.double()).sum().backward())
    model.float()
    again = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for _ in range(2):
        again.zero_grad()
        model(inputs).sum().backward()
        again.step()
    found["replaced"] = refusal(optimizer.step)
    found["equal"] = equal_on_all_ranks(model.parameters())
    ring.shutdown()
    ring.init()
    last = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model(inputs).sum().backward()
    last.step()
    found["equal after a second init"] = equal_on_all_ranks(model.parameters())
    del again, last
    model.zero_grad()
    model(inputs).sum().backward()  # nobody is left who averages
    found["freed"] = model.weight.grad[0].tolist() == [float(ring.rank())] * 3
    return found


def amp() -> dict[str, Any]:
    """GradScaler skips the same steps on all ranks, although only one of them has an infinity; autocast trains."""
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for unscales in (False, True):
        model = torch.nn.Sequential(torch.nn.Linear(3, WIDE), torch.nn.Linear(WIDE, 1))
        ring.broadcast_parameters(model.state_dict())
        optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), model.named_parameters())
        scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
        scales = []
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = model(torch.full((2, 3), 1.0 + ring.rank())).float().sum()
            if step == 1 and ring.rank() == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if unscales:
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
            else:
                scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        finite = all(bool(parameter.isfinite().all()) for parameter in model.parameters())
        found[f"unscales {unscales}"] = [scales, finite, equal_on_all_ranks(model.parameters())]
    return found


def rounds() -> dict[str, Any]:
    """Steps that are skipped, closures, and gradients that were replaced: ranks stay equal, or are told."""
    found: dict[str, Any] = {}
    inputs = torch.full((1, 3), 1.0 + ring.rank())
    for width in (2, WIDE):  # small gradients alone, and large ones
        torch.manual_seed(0)
        model = torch.nn.Linear(3, width)
        optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
        model(inputs).sum().backward()
        optimizer.synchronize()  # ... and the step is skipped
        model.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        found[f"skipped {width}"] = equal_on_all_ranks(model.parameters())

        def closure(model: Any = model, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs).sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        found[f"closure {width}"] = equal_on_all_ranks(model.parameters())
    optimizer.zero_grad()
    model(inputs).sum().backward()
    model.weight.grad = model.weight.grad * 0.5
    found["replaced"] = refusal(optimizer.step)
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()
    found["equal after it"] = equal_on_all_ranks(model.parameters())
    optimizer.zero_grad()
    reducer = optimizer._ring
    with reducer.no_sync():
        with reducer.no_sync():
            pass
        model(inputs).sum().backward()
    found["only added up"] = model.weight.grad[0].tolist() == inputs[0].tolist()
    model(inputs).sum().backward()
    optimizer.step()
    found["averaged with what was added up"] = model.weight.grad.unique().tolist() == [1.0 + ring.size()]
    found["twice"] = refusal(lambda: ring.DistributedOptimizer(optimizer, model.named_parameters()))
    turned = torch.complex(torch.ones(1), torch.ones(1)).conj().imag  # -1, stored as 1
    found["turned"] = [ring.allreduce(turned, op=ring.Sum).item(), ring.allgather(turned)[0].item()]
    found["no memory"] = "no memory" in refusal(lambda: ring.allreduce_(TwoTensor(torch.ones(2), torch.ones(2))))
    handle = ring.allreduce_async_(inputs.t().repeat(1, 2)[:, :1], op=ring.Sum)
    found["once"] = ring.synchronize(handle) is ring.synchronize(handle)
    return found


def default_device() -> dict[str, Any]:
    """What ringcore makes for itself is in the host's memory, whatever torch.set_default_device says."""
    torch.manual_seed(0)
    rank, size = ring.rank(), ring.size()
    layers = torch.nn.Embedding(WIDE, 4, sparse=True), torch.nn.Linear(4, WIDE), torch.nn.Linear(WIDE, 1)
    model = torch.nn.Sequential(*layers)
    words, rows, none = torch.tensor([[rank]]), torch.ones(size, 2), torch.ones(0, 2)
    with torch.device("meta"):
        optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        for step in range(2):
            optimizer.zero_grad()
            if step == 0 or rank == 0:  # then the others have no gradient
                model(words).sum().backward()
            optimizer.step()
        ring.broadcast_optimizer_state(optimizer)
        received, counts = ring.alltoall(rows, [1] * size)
        gathered = ring.allgather(none)
    return {
        "equal": equal_on_all_ranks(model.parameters()),
        "devices": {str(tensor.device) for tensor in (received, counts, gathered)} == {"cpu"},
    }


def streams() -> dict[str, Any]:
    """On a GPU: tensors that are made, waited for and used in different streams."""
    rank, size = ring.rank(), ring.size()
    made, used, more = (torch.cuda.Stream() for _ in range(3))
    total, count = float(sum(range(1, size + 1))), 1 << 22
    found: dict[str, Any] = {}

    def own() -> torch.Tensor:
        torch.cuda._sleep(20_000_000)  # cycles of the GPU: whoever does not wait for the stream sees other values
        return torch.full((count,), rank + 1.0)

    with torch.cuda.stream(made):
        reduced = ring.allreduce_async(own(), op=ring.Sum, name="reduced")
        rows = ring.allgather_async(own(), name="gathered")
        turned = own().view(2, -1).t()
        in_place = ring.allreduce_async_(turned, op=ring.Sum, name="turned")
        # Nobody waits for these, and their memory is free for others as soon as the GPU is done with it.
        for index in range(10):
            ring.allreduce_async_(own(), op=ring.Sum, name=f"dropped {index}")
    with torch.cuda.stream(used):
        copies = [ring.synchronize(handle).clone() for handle in (reduced, rows, in_place)]
    with torch.cuda.stream(more):
        again = ring.synchronize(reduced).clone()
    torch.cuda.synchronize()
    found["reduced"] = bool((copies[0] == total).all())
    found["gathered"] = copies[1].unique().tolist() == [other + 1.0 for other in range(size)]
    found["in place"] = bool((copies[2] == total).all())
    found["waited for in two streams"] = bool((again == total).all())

    class Sides(torch.nn.Module):
        """Two layers, each in a stream of its own, whose gradients one operation averages."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDE, 40, bias=False) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            results = []
            for layer, side in zip(self.layers, (made, used), strict=True):
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    results.append(layer(x).sum())
            for side in (made, used):
                torch.cuda.current_stream().wait_stream(side)
            return results[0] + results[1]

    model = Sides()
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    start = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.full((1, WIDE), rank + 1.0)).backward()
        optimizer.step()
    steps = [before - now.detach() for before, now in zip(start, model.parameters(), strict=True)]
    found["layers in two streams"] = all(
        torch.allclose(step, torch.full_like(step, 2 * total / size), atol=1e-5) for step in steps
    )
    return found


def compiled() -> dict[str, Any]:
    """A compiled model takes the same steps, and nothing complains."""
    results = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for compiles in (False, True):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(3, WIDE), torch.nn.Tanh(), torch.nn.Linear(WIDE, 1)).double()
            optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
            forward = torch.compile(model, fullgraph=True) if compiles else model
            for step in range(3):
                optimizer.zero_grad()
                inputs = torch.full((2, 3), 0.1 * (1 + ring.rank() + step), dtype=torch.float64)
                forward(inputs).square().sum().backward()
                optimizer.step()
            results.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    ours = [
        str(warning.message)
        for warning in caught
        if "ringcore" in str(warning.message) or Path(warning.filename).parent.name.startswith("ringcore")
    ]
    difference = (results[0] - results[1]).abs().max() / results[0].abs().max()  # the weights of this loss grow
    return {"difference": difference.item(), "warnings": ours}


def uneven() -> dict[str, Any]:
    """Ranks with different numbers of batches: who has none left joins."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, WIDE)
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(2 + ring.rank()):
        optimizer.zero_grad()
        model(torch.full((1, 3), 1.0 + step)).sum().backward()
        optimizer.step()
    last = ring.join()
    ring.broadcast_parameters(model.state_dict(), root_rank=last)
    return {"last": last, "equal": equal_on_all_ranks(model.parameters())}


def fails_in_a_hook() -> dict[str, Any]:
    """Rank 1's own hook raises in backward; the others must not wait for it."""
    model = torch.nn.Linear(3, WIDE)
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())

    def refuse(_: torch.Tensor) -> None:
        raise ValueError("not this gradient")

    for step in range(3):
        if step == 1 and ring.rank() == 1:
            model.weight.register_post_accumulate_grad_hook(refuse)
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    return {}


if __name__ == "__main__":
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.set_default_device(DEVICE)
    ring.init()
    for name in sys.argv[2:]:
        outcome = globals()[name]()
        Path(sys.argv[1], f"{name}.{ring.rank()}.json").write_text(json.dumps(outcome))
    ring.shutdown()
