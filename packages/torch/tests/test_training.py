"""Ranks that train are like one process that trains on all their batches."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ringcore
import ringcore_torch as ring
import torch
from support.on_ranks import DEVICE, ONE_ON_A_GPU, THREE, THREE_OVER_TCP, TWO, TWO_ON_GPUS, TWO_OVER_TCP, on

# Eight steps of sums in another order: some units in the last place of float64.
ROUNDING = 1e-13
# Columns of a matrix that is large enough for a bucket in registered memory.
WIDE = 4000


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


def batches(drawn: Callable[..., torch.Tensor], passes: int) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """For each step: (x, y) of every rank and pass, rank-major."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        yield [
            (drawn(4, 10, generator=generator), drawn(4, 3, generator=generator)) for _ in range(ring.size() * passes)
        ]


WAYS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], int, bool]] = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1, False),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.01), 1, False),
    "accumulate": (lambda p: torch.optim.SGD(p, lr=0.05), 3, False),
    "clip": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1, True),
}


@on(TWO, THREE, TWO_OVER_TCP, TWO_ON_GPUS, ONE_ON_A_GPU)
@pytest.mark.parametrize("way", WAYS)
def test_ranks_train_like_one_with_all_their_batches(
    way: str, drawn: Callable[..., torch.Tensor], equal_on_all_ranks: Callable[..., bool]
) -> None:
    make, passes, clip = WAYS[way]
    rank, size, loss_of = ring.rank(), ring.size(), torch.nn.functional.mse_loss
    torch.manual_seed(rank)
    model = Net().double()
    ring.broadcast_parameters(model.state_dict(), root_rank=0)
    alone = copy.deepcopy(model)
    reference = make(alone.parameters())
    optimizer = ring.DistributedOptimizer(
        make(model.parameters()), named_parameters=model.named_parameters(), backward_passes_per_step=passes
    )
    assert isinstance(optimizer, type(reference))
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 3) for one in (optimizer, reference)]
    for step in batches(drawn, passes):
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
        for scheduler in schedulers:
            scheduler.step()
    for own, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert (own - expected).abs().max().item() < ROUNDING
    assert equal_on_all_ranks(model.parameters())
    assert model.nobody.weight.grad is None, "a layer that no rank used got a gradient"


@on(TWO, TWO_ON_GPUS)
@pytest.mark.parametrize(
    "kind",
    [kind for kind in vars(torch.optim).values() if isinstance(kind, type) and kind is not torch.optim.Optimizer],
)
def test_state_of_every_optimizer_is_broadcast(kind: Any) -> None:
    torch.manual_seed(ring.rank())
    model: torch.nn.Module = torch.nn.Linear(4, 2, bias=kind is not torch.optim.Muon)  # which takes matrices only
    if kind is torch.optim.SparseAdam:
        model = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = kind(model.parameters(), lr=0.1 * (1 + ring.rank()))

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        inputs = torch.tensor([1]) if isinstance(model, torch.nn.Embedding) else torch.ones(1, 4)
        total: torch.Tensor = model(inputs).square().sum()
        total.backward()
        return total

    if ring.rank() == 0:  # the others have not stepped yet
        optimizer.step(loss)
    ring.broadcast_optimizer_state(optimizer, root_rank=0)
    state = json.dumps(
        optimizer.state_dict(), default=lambda t: t.tolist() if isinstance(t, torch.Tensor) else str(t), sort_keys=True
    )
    assert len(set(ring.allgather_object(state))) == 1


@on(TWO, TWO_ON_GPUS)
def test_parameters_and_state_of_the_rank_that_is_named() -> None:
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
        momentum = optimizer.state[model.weight]["momentum_buffer"]
        assert model.weight.unique().tolist() == [11.0 * root - (1.0 + root) ** 2]
        assert model.num_batches_tracked.item() == root
        assert optimizer.param_groups[0]["lr"] == 1.0 + root
        assert momentum.tolist() == [1.0 + root] * 3
        assert momentum.device == model.weight.device


@on(TWO, TWO_ON_GPUS)
@pytest.mark.parametrize("unscales", [False, True])
def test_a_grad_scaler_skips_the_same_steps_on_all_ranks(
    unscales: bool, equal_on_all_ranks: Callable[..., bool]
) -> None:
    torch.manual_seed(0)
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
    # The infinity of rank 1 halves the scale of all ranks.
    assert scales == [1024.0, 512.0, 512.0, 512.0]
    for parameter in model.parameters():
        assert bool(parameter.isfinite().all())
    assert equal_on_all_ranks(model.parameters())


# Inductor compiles its code by a C++ compiler, on each rank; what is ours sees the same calls without it.
@on(TWO)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_a_compiled_model_takes_the_same_steps(backend: str) -> None:
    results = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for compiles in (False, True):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(3, WIDE), torch.nn.Tanh(), torch.nn.Linear(WIDE, 1)).double()
            optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
            forward = torch.compile(model, fullgraph=True, backend=backend) if compiles else model
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
    assert ours == []
    difference = (results[0] - results[1]).abs().max() / results[0].abs().max()  # the weights of this loss grow
    # Three steps, each with sums over 4000 columns in another order.
    assert difference.item() < 3 * 4000 * sys.float_info.epsilon


@on(TWO, THREE, TWO_ON_GPUS)
def test_ranks_with_different_numbers_of_batches_join(equal_on_all_ranks: Callable[..., bool]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, WIDE)
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(2 + ring.rank()):
        optimizer.zero_grad()
        model(torch.full((1, 3), 1.0 + step)).sum().backward()
        optimizer.step()
    last = ring.join()
    assert last == ring.size() - 1
    ring.broadcast_parameters(model.state_dict(), root_rank=last)
    assert equal_on_all_ranks(model.parameters())


@on(TWO)
def test_steps_that_are_combined_by_adasum() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1, bias=False).double()
    start = model.weight.detach().clone()
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), op=ring.Adasum
    )
    own = torch.tensor([1.0, 0.0]) if ring.rank() == 0 else torch.tensor([1.0, 1.0])
    model(own.double()).sum().backward()  # the gradient is the input
    optimizer.step()
    assert ((start - model.weight.detach()) / 0.5)[0].tolist() == [1.25, 0.75]
    with pytest.raises(ringcore.InvalidArgument, match="no backward_passes_per_step"):
        ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), backward_passes_per_step=2, op=ring.Adasum
        )


@on(TWO)
def test_adasum_refuses_what_it_would_leave_undone() -> None:
    def wrap(**options: Any) -> Any:
        model = torch.nn.Linear(2, 1, bias=False)
        return ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), op=ring.Adasum, **options
        )

    for name in ("int8", "int4"):
        with pytest.raises(ringcore.InvalidArgument, match=rf"combines steps whole, and {name}.*fp16 or bf16"):
            wrap(compression=name)
    with pytest.raises(ringcore.InvalidArgument, match="keeps nothing of what bf16 loses; leave out error_feedback"):
        wrap(compression="bf16", error_feedback=True)


class OnAGPU(torch.nn.Parameter):
    """Says that it lies on a GPU, where there is none."""

    says = torch.device("cuda", 0)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.says


@on(TWO)
def test_adasum_refuses_parameters_on_a_gpu_before_it_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = OnAGPU(torch.ones(2))

    def wrap() -> Any:
        return ring.DistributedOptimizer(torch.optim.SGD([weight], lr=0.5), [("weight", weight)], op=ring.Adasum)

    with pytest.raises(ringcore.InvalidArgument, match=r"'weight' lies on cuda:0, and op=Adasum .*host memory"):
        wrap()
    monkeypatch.setattr(OnAGPU, "says", torch.device("cpu"))
    optimizer = wrap()
    weight.grad = torch.ones(2)
    monkeypatch.setattr(OnAGPU, "says", torch.device("cuda", 0))  # it has moved since
    with pytest.raises(ringcore.InvalidArgument, match="'weight' lies on cuda:0"):
        optimizer.step()
    assert weight.tolist() == [1.0, 1.0]


@on(TWO, TWO_ON_GPUS)
@pytest.mark.parametrize("name", ["none", "fp16", "bf16"])
def test_ranks_stay_equal_with_compressed_gradients(name: str, equal_on_all_ranks: Callable[..., bool]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
        compression=getattr(ring.Compression, name),
    )  # fmt: skip
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((1, 3), ring.rank() + 1.0)).sum().backward()
        optimizer.step()
    assert equal_on_all_ranks(model.parameters())


@on(THREE_OVER_TCP)
@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients_train_like_one_rank(as_dense: bool) -> None:
    rank, size = ring.rank(), ring.size()
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
        if not (step == 2 and rank == 1):  # this rank has no batch, and no gradient of its own
            model(words[rank]).sum().backward()
        optimizer.step()
        assert model[0].weight.grad.layout is (torch.strided if as_dense else torch.sparse_coo)
        reference.zero_grad()
        losses = [alone(w).sum() for r, w in enumerate(words) if not (step == 2 and r == 1)]
        (sum(losses) / size).backward()
        reference.step()
    for own, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert (own - expected).abs().max().item() < ROUNDING


@on(TWO_ON_GPUS, ONE_ON_A_GPU)
def test_layers_in_two_streams_whose_gradients_one_operation_averages() -> None:
    sides = [torch.cuda.Stream() for _ in range(2)]

    class Sides(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDE, 40, bias=False) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            results = []
            for layer, side in zip(self.layers, sides, strict=True):
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    results.append(layer(x).sum())
            for side in sides:
                torch.cuda.current_stream().wait_stream(side)
            return results[0] + results[1]

    model = Sides()
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.full((1, WIDE), ring.rank() + 1.0)).backward()
        optimizer.step()
    average = sum(range(1, ring.size() + 1)) / ring.size()
    for start, parameter in zip(before, model.parameters(), strict=True):
        assert torch.allclose(start - parameter.detach(), torch.full_like(start, 2 * average), atol=1e-5)


RAISES_IN_A_HOOK = f"""
import ringcore_torch as ring
import torch

ring.init()
torch.manual_seed(0)
model = torch.nn.Linear(3, {WIDE})
optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())

def refuse(_):
    raise ValueError("not this gradient")

for step in range(3):
    if step == 1 and ring.rank() == 1:
        model.weight.register_post_accumulate_grad_hook(refuse)
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
"""


def test_an_exception_in_a_hook_of_one_rank_ends_all() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ringcore", "run", "-np", "2", sys.executable, "-c", RAISES_IN_A_HOOK],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "ValueError: not this gradient" in done.stderr
    assert "ringrun: rank 0: lost rank 1, and failed with it" in done.stderr
