"""What PyTorch builds on torch.distributed: DistributedDataParallel, sharding, and Accelerate on top of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import DEVICE, ONE_ON_A_GPU, THREE, TWO, TWO_ON_GPUS, on
from torch.nn.parallel import DistributedDataParallel

ALL = on(TWO, THREE, TWO_ON_GPUS, ONE_ON_A_GPU)
WIDTH = 200
Equal = Callable[[Iterable[torch.Tensor]], bool]


def net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 3)).double()


def batch(rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(4, 8, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE)


def loss_of(model: Any, rank: int) -> torch.Tensor:
    loss: torch.Tensor = model(batch(rank)).square().mean()
    return loss


def loss_of_all(model: Any) -> Any:
    """What one rank with everybody's batches has."""
    return sum(loss_of(model, rank) for rank in range(dist.get_world_size())) / dist.get_world_size()


def gradients_of_one() -> list[Any]:
    model = net()
    loss_of_all(model).backward()
    return [parameter.grad for parameter in model.parameters()]


def gradients(model: Any, steps: int = 1) -> list[Any]:
    for _ in range(steps):
        model.zero_grad()
        loss_of(model, dist.get_rank()).backward()
    return [parameter.grad for parameter in model.parameters()]


def furthest(found: Any, expected: Any) -> float:
    pairs = zip(found, expected, strict=True)
    return max(float((one.detach() - other.detach()).abs().max()) for one, other in pairs)


@ALL
@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 0.001}, {"static_graph": True}], ids=str)
def test_gradients_are_those_of_one_with_all_batches(options: dict[str, Any]) -> None:
    model = DistributedDataParallel(net(), **options)
    assert furthest(gradients(model, 3 if "static_graph" in options else 1), gradients_of_one()) < 1e-15


@ALL
def test_communication_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    model = DistributedDataParallel(net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    assert furthest(gradients(model), gradients_of_one()) < 2**-10
    model = DistributedDataParallel(net())
    # Its callbacks wait for other reductions.
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    assert all(torch.isfinite(grad).all() for grad in gradients(model, 4))


@ALL
def test_no_sync() -> None:
    model = DistributedDataParallel(net())
    with model.no_sync():
        loss_of(model, dist.get_rank()).backward()
    loss_of(model, dist.get_rank()).backward()
    twice = [parameter.grad for parameter in model.parameters()]
    assert furthest(twice, [2 * grad for grad in gradients_of_one()]) < 1e-15


class Either(torch.nn.Module):
    """Each rank goes its own way; the last one is nobody's."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = torch.nn.ModuleList(torch.nn.Linear(8, 1).double() for _ in range(dist.get_world_size() + 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.ways[dist.get_rank()](x)
        return result


@ALL
def test_parameters_that_are_not_used() -> None:
    model = DistributedDataParallel(Either(), find_unused_parameters=True)
    loss_of(model, dist.get_rank()).backward()
    has_gradient = [way.weight.grad is not None for way in model.module.ways]
    assert has_gradient == [True] * dist.get_world_size() + [False]


@ALL
def test_join(equal_on_all_ranks: Equal) -> None:
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(net())
    with Join([model]):
        for _ in range(2 + dist.get_rank()):
            loss_of(model, dist.get_rank()).backward()
    assert equal_on_all_ranks(model.parameters())


@ALL
def test_zero_redundancy_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    one, sharded = net(), DistributedDataParallel(net())
    adam = torch.optim.Adam(one.parameters(), 0.01)
    zero = ZeroRedundancyOptimizer(sharded.parameters(), torch.optim.Adam, lr=0.01)
    for _ in range(3):
        adam.zero_grad()
        zero.zero_grad()
        loss_of_all(one).backward()
        loss_of(sharded, dist.get_rank()).backward()
        adam.step()
        zero.step()
    assert furthest(sharded.parameters(), one.parameters()) < 1e-12


@ALL
def test_fully_shard() -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh(DEVICE, (dist.get_world_size(),))
    one, sharded = net(), net()
    fully_shard(sharded[0], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    optimizers = [torch.optim.Adam(model.parameters(), 0.01) for model in (one, sharded)]
    for _ in range(3):
        loss_of_all(one).backward()
        loss_of(sharded, dist.get_rank()).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    whole = [parameter.full_tensor() for parameter in sharded.parameters()]
    assert furthest(whole, one.parameters()) < 1e-12


@ALL
def test_dtensor() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    size = dist.get_world_size()
    whole = torch.arange(float(size * 6)).view(size * 2, 3)
    tensor = distribute_tensor(whole.clone(), dist.init_device_mesh(DEVICE, (size,)), [Shard(0)])
    again = tensor.redistribute(placements=[Shard(1)]).redistribute(placements=[Replicate()])
    assert torch.equal(again.to_local(), whole)


@ALL
def test_functional_collectives_are_compiled() -> None:
    import torch.distributed._functional_collectives as functional

    summed = torch.compile(lambda x: functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1, backend="aot_eager")
    assert summed(torch.ones(2)).tolist() == [2.0 * dist.get_world_size() + 1] * 2


@ALL
def test_checkpoints(shared_folder: Path) -> None:
    import torch.distributed.checkpoint as checkpoint

    state = {"model": net().state_dict()}
    checkpoint.save(state, checkpoint_id=str(shared_folder / "checkpoint"))
    loaded = {"model": {name: torch.zeros_like(value) for name, value in state["model"].items()}}
    checkpoint.load(loaded, checkpoint_id=str(shared_folder / "checkpoint"))
    assert furthest(loaded["model"].values(), state["model"].values()) == 0.0


@on(TWO)
def test_accelerate_trains_as_with_gloo(new_default_group: Callable[[str], None]) -> None:
    """Accelerate uses the group that is there."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    weights = {}
    for backend in ("gloo", "ring"):
        new_default_group(backend)
        accelerator = Accelerator(cpu=True)
        inputs = torch.utils.data.TensorDataset(torch.cat([batch(other) for other in range(4)]))
        model, batches = accelerator.prepare(net(), torch.utils.data.DataLoader(inputs, batch_size=2))
        optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
        for (x,) in batches:
            optimizer.zero_grad()
            accelerator.backward(model(x).square().mean())
            optimizer.step()
        assert dist.get_backend() == backend
        assert len(batches) == 8 // dist.get_world_size()
        weights[backend] = [parameter.detach() for parameter in model.parameters()]
        AcceleratorState._reset_state(reset_partial_state=True)
    assert all(map(torch.equal, weights["ring"], weights["gloo"]))
