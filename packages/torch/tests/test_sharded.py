"""An optimizer of which each rank has a share steps as the whole one does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import ringcore
import ringcore_torch as ring
import torch
from ringcore import adapter
from support.on_ranks import DEVICE, THREE_OVER_TCP, TWO, TWO_ON_GPUS, on

Make = Callable[[Any], torch.optim.Optimizer]
Equal = Callable[[Iterable[torch.Tensor]], bool]
ROUNDING = 1e-12

WAYS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    "adadelta": torch.optim.Adadelta,
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1, t0=2),
}


class Net(torch.nn.Module):
    """With a layer that nobody uses, and one that only rank 0 uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(7, 31), torch.nn.Tanh(), torch.nn.Linear(31, 3))
        self.nobody = torch.nn.Linear(2, 2)
        self.first = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        y = self.body(x)
        return self.first(y) if rank == 0 else y


def groups_of(model: Net) -> list[dict[str, Any]]:
    """Two."""
    return [
        {"params": list(model.body.parameters())},
        {"params": [*model.nobody.parameters(), *model.first.parameters()]},
    ]


def train(model: Net, alone: Net, optimizer: Any, reference: Any, passes: int = 1, clip: float | None = None) -> None:
    """Some steps of both: here with this rank's batches, alone with all ranks'."""
    generator = torch.Generator().manual_seed(3)
    size, loss_of = ring.size(), torch.nn.functional.mse_loss
    for _ in range(6):
        optimizer.zero_grad()
        reference.zero_grad()
        for _ in range(passes):
            for rank in range(size):
                x = torch.randn(4, 7, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE)
                y = torch.randn(4, 3, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE)
                (loss_of(alone(x, rank), y) / size).backward()
                if rank == ring.rank():
                    loss_of(model(x, rank), y).backward()
        if clip is not None:
            norm = optimizer.clip_grad_norm(clip)
            expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), clip)
            assert abs(norm - expected) < ROUNDING
        optimizer.step()
        reference.step()
        for own, other in zip(model.parameters(), alone.parameters(), strict=True):
            assert (own - other).abs().max() < ROUNDING


@on(TWO, THREE_OVER_TCP, TWO_ON_GPUS)
@pytest.mark.parametrize("way", WAYS)
def test_every_class_steps_as_without_shards(way: str, equal_on_all_ranks: Equal) -> None:
    model = Net().double()
    alone = copy.deepcopy(model)
    plain, reference = WAYS[way](groups_of(model)), WAYS[way](groups_of(alone))
    optimizer = ring.ShardedOptimizer(plain, model.named_parameters())
    assert isinstance(optimizer, type(reference))
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 2) for one in (optimizer, reference)]
    train(model, alone, optimizer, reference)
    for scheduler in schedulers:
        scheduler.step()
    train(model, alone, optimizer, reference)
    assert equal_on_all_ranks(model.parameters())
    whole, expected = optimizer.full_state_dict(), reference.state_dict()
    assert whole["param_groups"] == expected["param_groups"]
    assert set(whole["state"]) == set(expected["state"])
    for index, state in expected["state"].items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                assert (whole["state"][index][key] - value).abs().max() < ROUNDING, (index, key)


@on(THREE_OVER_TCP)
@pytest.mark.parametrize(("passes", "clip"), [(3, None), (1, 0.05), (2, 0.05)])
def test_accumulation_and_clipping(passes: int, clip: float | None) -> None:
    model = Net().double()
    alone = copy.deepcopy(model)
    optimizer = ring.ShardedOptimizer(WAYS["adamw"](groups_of(model)), model.named_parameters())
    train(model, alone, optimizer, WAYS["adamw"](groups_of(alone)), passes, clip)


@on(TWO)
def test_each_rank_keeps_the_state_of_its_share_alone() -> None:
    model = torch.nn.Linear(100, 50)
    optimizer = ring.ShardedOptimizer(torch.optim.AdamW(model.parameters()), model.named_parameters(), broadcast=True)
    model(torch.randn(3, 100)).sum().backward()
    optimizer.step()
    kept = sum(value.numel() for state in optimizer.state_dict()["share"].values() for value in state.values())
    whole = 2 * sum(parameter.numel() for parameter in model.parameters())
    assert kept <= whole / ring.size() + 10
    assert not optimizer.state


@on(TWO)
@pytest.mark.parametrize("form", ["share", "full", "unsharded"])
def test_training_goes_on_from_a_state(form: str) -> None:
    model = Net().double()
    alone = copy.deepcopy(model)
    optimizer = ring.ShardedOptimizer(WAYS["adamw"](groups_of(model)), model.named_parameters())
    reference = WAYS["adamw"](groups_of(alone))
    train(model, alone, optimizer, reference)
    states = {
        "share": optimizer.state_dict, "full": optimizer.full_state_dict, "unsharded": reference.state_dict,
    }  # fmt: skip
    state = copy.deepcopy(states[form]())
    again = copy.deepcopy(alone)
    second = ring.ShardedOptimizer(WAYS["adamw"](groups_of(again)), again.named_parameters())
    second.load_state_dict(state)
    train(again, alone, second, reference)
    if form == "full":
        plain = WAYS["adamw"](groups_of(copy.deepcopy(alone)))
        plain.load_state_dict(state)
    if form == "share":
        state["rank"] = 1 - state["rank"]
        with pytest.raises(ringcore.InvalidArgument, match=r"full_state_dict"):
            second.load_state_dict(state)


BY_PARAMETER: dict[str, Make] = {
    "muon": lambda p: torch.optim.Muon(p, lr=0.02, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
}


def matrices() -> list[torch.nn.Parameter]:
    """Of many sizes; one of them is never used."""
    shapes = [(3, 5), (8, 8), (1, 7), (20, 4), (6, 6), (9, 2), (5, 12)]
    return [torch.nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes]


def draw_gradients(models: Iterable[list[torch.nn.Parameter]], seed: int) -> None:
    """Whole numbers: their sum is the same in every order, and so what is rounded to bfloat16 of it."""
    generator = torch.Generator().manual_seed(seed * 10 + ring.rank())
    for parameters in zip(*models, strict=True):
        if parameters[0].shape != (9, 2):
            drawn = torch.randint(-9, 10, parameters[0].shape, generator=generator, dtype=torch.float64, device="cpu")
            for parameter in parameters:
                parameter.grad = drawn.to(DEVICE, copy=True)


@on(TWO, THREE_OVER_TCP, TWO_ON_GPUS)
@pytest.mark.parametrize("way", BY_PARAMETER)
def test_matrices_are_dealt_out_whole(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[torch.Size] = []
    orthogonalise = torch.optim._muon._zeropower_via_newtonschulz

    def counting(matrix: torch.Tensor, *arguments: Any) -> torch.Tensor:
        counted.append(matrix.shape)
        return orthogonalise(matrix, *arguments)

    models = [matrices()]
    models += [copy.deepcopy(models[0]) for _ in range(2)]
    make = BY_PARAMETER[way]
    sharded = ring.ShardedOptimizer(make(models[0]))
    plain = make(models[1])
    reference = ring.DistributedOptimizer(plain)
    for step in range(3):
        draw_gradients(models, step)
        reference.step()
        with monkeypatch.context() as patched:
            patched.setattr(torch.optim._muon, "_zeropower_via_newtonschulz", counting)
            sharded.step()
        for own, other in zip(*models[:2], strict=True):
            assert torch.equal(own, other)
    every = [tuple(shape) for each in ringcore.allgather_object(counted) for shape in each]
    assert len(every) == (3 * 6 if way == "muon" else 0)  # once each in a step, wherever it is
    # 280 values: the largest matrix first, each to the rank that has least.
    assert len(sharded._flats[0].values) == {2: 2 * 141, 3: 3 * 96}[ring.size()]
    # Whole states, from here to an optimizer that is not sharded, and from there to one that is.
    whole = sharded.full_state_dict()
    assert set(whole["state"]) == set(plain.state_dict()["state"])
    again = ring.ShardedOptimizer(make(models[2]))
    with torch.no_grad():
        for own, other in zip(models[2], models[0], strict=True):
            own.copy_(other)
    again.load_state_dict(plain.state_dict())
    plain.load_state_dict(whole)
    sharded.load_state_dict(copy.deepcopy(sharded.state_dict()))
    draw_gradients(models, 9)
    for optimizer in (sharded, reference, again):
        optimizer.step()
    for first, second, third in zip(*models, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first, third)


@on(TWO)
def test_an_optimizer_that_is_said_to_step_each_parameter_by_itself() -> None:
    class Unit(torch.optim.SGD):
        """Steps by one, whatever the gradient's norm is."""

        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.data -= group["lr"] * parameter.grad / parameter.grad.norm()

    parameters = [torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(3))]
    optimizer = ring.ShardedOptimizer(Unit(parameters, lr=1.0), by_parameter=True)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1.0 + ring.rank())
    optimizer.step()
    assert torch.equal(parameters[0], torch.full((2, 2), -0.5))
    assert torch.allclose(parameters[1], torch.full((3,), -(3**-0.5)))


@on(TWO)
def test_what_a_sharded_optimizer_does_not_take() -> None:
    model = torch.nn.Linear(3, 3)
    with pytest.raises(ringcore.InvalidArgument, match="not known to work by element"):
        ring.ShardedOptimizer(torch.optim.LBFGS(model.parameters()))
    optimizer = ring.ShardedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ringcore.InvalidArgument, match="wrap it once"):
        ring.ShardedOptimizer(optimizer)
    with pytest.raises(ringcore.InvalidArgument, match="no more parameters"):
        optimizer.add_param_group({"params": [torch.ones(2, requires_grad=True)]})
    with pytest.raises(ringcore.InvalidArgument, match="no closure"):
        optimizer.step(lambda: 0.0)
    torch.nn.init.constant_(model.weight, ring.rank())
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(ringcore.MismatchError, match="weight"):
        optimizer.step()


def test_in_elastic_jobs_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "is_elastic", lambda: True)
    model = torch.nn.Linear(3, 2)
    with pytest.raises(ringcore.InvalidArgument, match="the share of a lost rank would be lost"):
        ring.ShardedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
