"""An optimizer that servers hold steps as it does without them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import ringcore
import ringcore_torch as ring
import torch
from ringcore_torch import served
from support.on_ranks import Start, on
from support.rank import await_mark, mark

Make = Callable[[Any], torch.optim.Optimizer]
Equal = Callable[[Iterable[torch.Tensor]], bool]
ROUNDING = 1e-12

ONE_SERVER = Start(2, servers=1)
TWO_SERVERS = Start(3, "tcp", servers=2)
MORE_SERVERS = Start(2, servers=3)

WAYS: dict[str, Make] = {
    "plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "maximize": lambda p: torch.optim.SGD(p, lr=1e-3, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(
        p, lr=torch.tensor(0.01, dtype=torch.float64), amsgrad=True, betas=(0.8, 0.99)
    ),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, maximize=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.1),
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
    for _ in range(5):
        optimizer.zero_grad()
        reference.zero_grad()
        for _ in range(passes):
            for rank in range(size):
                x = torch.randn(4, 7, generator=generator, dtype=torch.float64)
                y = torch.randn(4, 3, generator=generator, dtype=torch.float64)
                (loss_of(alone(x, rank), y) / size).backward()
                if rank == ring.rank():
                    loss_of(model(x, rank), y).backward()
        if clip is not None:
            norm = optimizer.clip_grad_norm(clip)
            assert abs(norm - torch.nn.utils.clip_grad_norm_(alone.parameters(), clip)) < ROUNDING
        optimizer.step()
        reference.step()
        for own, other in zip(model.parameters(), alone.parameters(), strict=True):
            assert (own - other).abs().max() < ROUNDING


def check_states(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """They are the same, to rounding."""
    assert found["param_groups"] == expected["param_groups"]
    assert set(found["state"]) == {index for index, state in expected["state"].items() if state}
    for index, state in found["state"].items():
        kept = {key: value for key, value in expected["state"][index].items() if value is not None}
        assert set(state) == set(kept)
        for key, value in kept.items():
            assert (state[key] - value).abs().max() < ROUNDING, (index, key)


@on(ONE_SERVER, TWO_SERVERS, MORE_SERVERS)
@pytest.mark.parametrize("way", WAYS)
def test_every_class_steps_as_without_servers(way: str, equal_on_all_ranks: Equal) -> None:
    model = Net().double()
    alone = copy.deepcopy(model)
    optimizer = ring.ServerOptimizer(WAYS[way](groups_of(model)), model.named_parameters())
    reference = WAYS[way](groups_of(alone))
    assert isinstance(optimizer, type(reference))
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 1, gamma=0.5) for one in (optimizer, reference)]
    train(model, alone, optimizer, reference)
    for scheduler in schedulers:
        scheduler.step()
    train(model, alone, optimizer, reference)
    assert equal_on_all_ranks(model.parameters())
    check_states(optimizer.state_dict(), reference.state_dict())
    assert not optimizer.state  # none of it is here


@on(ONE_SERVER, TWO_SERVERS)
def test_a_row_is_cut_into_shares_and_rows_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "SOONER_BUCKET_BYTES", 100_000)
    model = torch.nn.ParameterList([torch.randn(size) for size in (3, 50_000, 70_001, 0, 9, 120_000)])
    alone = copy.deepcopy(model)
    optimizer = ring.ServerOptimizer(torch.optim.AdamW(model.parameters(), lr=0.1), model.named_parameters())
    reference = torch.optim.AdamW(alone.parameters(), lr=0.1)
    for step in range(3):
        for index, (own, other) in enumerate(zip(model, alone, strict=True)):
            torch.manual_seed(10 * step + index)
            drawn = torch.randn(ring.size(), *own.shape)
            own.grad, other.grad = drawn[ring.rank()].clone(), drawn.mean(0)
        optimizer.step()
        reference.step()
        optimizer.zero_grad()
    for own, other in zip(model, alone, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


@on(TWO_SERVERS)
@pytest.mark.parametrize(("passes", "clip"), [(3, None), (1, 0.05), (2, 0.05)])
def test_accumulation_and_clipping(passes: int, clip: float | None) -> None:
    model = Net().double()
    alone = copy.deepcopy(model)
    optimizer = ring.ServerOptimizer(WAYS["adamw"](groups_of(model)), model.named_parameters())
    train(model, alone, optimizer, WAYS["adamw"](groups_of(alone)), passes, clip)


@on(ONE_SERVER, TWO_SERVERS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("served_before", [True, False])
def test_training_goes_on_from_a_state(way: str, served_before: bool) -> None:
    model = Net().double()
    alone = copy.deepcopy(model)
    first = ring.ServerOptimizer(WAYS[way](groups_of(model)), model.named_parameters())
    reference = WAYS[way](groups_of(alone))
    train(model, alone, first, reference)
    state = copy.deepcopy((first if served_before else reference).state_dict())
    again = Net().double()
    second = ring.ServerOptimizer(WAYS[way](groups_of(again)), again.named_parameters())
    second.load_state_dict(state)
    again.load_state_dict(alone.state_dict())
    train(again, alone, second, reference)
    check_states(second.state_dict(), reference.state_dict())


@on(ONE_SERVER)
def test_a_momentum_that_comes_later_begins_then() -> None:
    model, alone = (torch.nn.Linear(3, 2).double() for _ in range(2))
    alone.load_state_dict(model.state_dict())
    optimizer = ring.ServerOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), broadcast=True)
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    alone.load_state_dict(model.state_dict())
    for momentum in (0.0, 0.9, 0.9, 0.5):
        for one, network in ((optimizer, model), (reference, alone)):
            one.param_groups[0]["momentum"] = momentum
            one.zero_grad()
            network(torch.ones(1, 3, dtype=torch.float64)).square().sum().backward()
            one.step()
    for own, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert (own - other).abs().max() < ROUNDING


@on(TWO_SERVERS)
def test_weights_that_are_changed_have_to_be_sent() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = ring.ServerOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model.weight.fill_(float(5 + ring.rank()))
    with pytest.raises(ringcore.InvalidArgument, match=r"optimizer\.send_weights\(\) on all ranks"):
        optimizer.step()
    optimizer.send_weights()
    optimizer.step()
    assert (model.weight == 5).all()  # rank 0's


@on(ONE_SERVER, TWO_SERVERS)
def test_ranks_that_step_with_different_numbers_are_told_and_nothing_is_stepped() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = ring.ServerOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    before = copy.deepcopy(model.state_dict())
    optimizer.param_groups[0]["lr"] = 0.1 * (1 + ring.rank())
    with pytest.raises(ringcore.RingcoreError, match=r"'lr': 0.1.* on ranks \[0\] and .*'lr': 0.2.* on ranks \[1\]"):
        optimizer.step()
    assert all((model.state_dict()[key] == value).all() for key, value in before.items())
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    assert not (model.bias == before["bias"]).any()


@on(ONE_SERVER)
def test_ranks_that_call_other_methods_are_told() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = ring.ServerOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    model(torch.ones(1, 3)).sum().backward()
    call = optimizer.state_dict if ring.rank() == 0 else optimizer.step
    with pytest.raises(ringcore.RingcoreError, match=r"do is state on ranks \[0\] and step on ranks \[1\]"):
        call()
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


@on(ONE_SERVER)
def test_ranks_that_wrap_other_optimizers_are_told() -> None:
    model = torch.nn.Linear(3, 2 + ring.rank())
    with pytest.raises(ringcore.MismatchError, match=r"rows is \[8\] on ranks \[0\] and \[12\] on ranks \[1\]"):
        ring.ServerOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters())


@on(ONE_SERVER)
def test_weights_that_differ_are_told() -> None:
    torch.manual_seed(ring.rank())
    model = torch.nn.Linear(3, 2)
    optimizer = ring.ServerOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters())
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(ringcore.MismatchError, match="broadcast=True to ServerOptimizer"):
        optimizer.step()


@on(ONE_SERVER)
def test_mistakes() -> None:
    model = torch.nn.Linear(3, 2)
    refused = ringcore.InvalidArgument
    with pytest.raises(refused, match="servers do not know RMSprop; use one of Adagrad, Adam, AdamW, SGD"):
        ring.ServerOptimizer(torch.optim.RMSprop(model.parameters()))
    with pytest.raises(refused, match="float32 and float64, not of bfloat16"):
        ring.ServerOptimizer(torch.optim.SGD(copy.deepcopy(model).bfloat16().parameters()))
    both = [*model.parameters(), *copy.deepcopy(model).double().parameters()]
    with pytest.raises(refused, match=r"'parameter\.2' is of torch\.float64 and '"):
        ring.ServerOptimizer(torch.optim.SGD(both))
    optimizer = ring.ServerOptimizer(torch.optim.SGD(model.parameters()), model.named_parameters())
    with pytest.raises(refused, match="wrapped already"):
        ring.ServerOptimizer(optimizer)
    with pytest.raises(refused, match="takes no more parameters"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    with pytest.raises(refused, match="takes no closure"):
        optimizer.step(lambda: 0.0)
    optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(refused, match="takes finite numbers"):
        optimizer.step()
    other = torch.optim.SGD(torch.nn.Linear(2, 3).parameters(), momentum=0.9)
    with pytest.raises(refused, match=r"has the shape \[3, 2\], and here it is \[2, 3\]"):
        for parameter in other.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        other.step()
        optimizer.load_state_dict(other.state_dict())


@on(ONE_SERVER, TWO_SERVERS, MORE_SERVERS)
def test_ranks_that_do_not_wait_step_by_each_gradient_in_some_order(equal_on_all_ranks: Equal) -> None:
    model = torch.nn.Linear(50, 3).double()
    begin = copy.deepcopy(model.state_dict())
    plain = torch.optim.SGD(model.parameters(), lr=0.125)
    optimizer = ring.ServerOptimizer(plain, model.named_parameters(), staleness=2)
    seen = []
    for _ in range(10):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1.0 + ring.rank())
        optimizer.step()
        seen.append(float((begin["bias"] - model.bias.detach())[0]))
    assert seen == sorted(seen)
    # What a rank sees has its own steps in it, and of the others as many as they have made.
    for step, moved in enumerate(seen):
        assert moved >= 0.125 * (1 + ring.rank()) * (step + 1)
    optimizer.synchronize()
    assert equal_on_all_ranks(model.parameters())
    total = 0.125 * 10 * sum(1 + rank for rank in range(ring.size()))
    for name, value in model.state_dict().items():
        assert ((begin[name] - value - total).abs() < ROUNDING).all()
    optimizer.step()  # and it goes on
    optimizer.synchronize()
    assert equal_on_all_ranks(model.parameters())


@on(Start(2, servers=1, variables=(("RINGCORE_TIMEOUT_S", "3"),)))
def test_a_rank_that_is_too_far_behind_is_named(monkeypatch: pytest.MonkeyPatch, shared_folder: Path) -> None:
    monkeypatch.setenv("RANKS_DIRECTORY", str(shared_folder))
    model = torch.nn.Linear(2, 1)
    optimizer = ring.ServerOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), staleness=0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    if ring.rank() == 0:
        with pytest.raises(ringcore.RingcoreError, match=r"too far ahead of ranks \[1\], which made no step for 2.7 s"):
            optimizer.step()
        mark("told")
    else:
        await_mark("told", 0)
    optimizer.synchronize()


@on(ONE_SERVER)
def test_bounds_that_are_none() -> None:
    for wrong in (-1, 1.5, True, "1"):
        with pytest.raises(ringcore.InvalidArgument, match="staleness is a whole number of steps, from 0"):
            ring.ServerOptimizer(torch.optim.SGD(torch.nn.Linear(3, 2).parameters()), staleness=wrong)


@on(Start(2))
def test_a_job_without_servers_says_so() -> None:
    with pytest.raises(ringcore.InvalidArgument, match="start it with ringrun --servers N"):
        ring.ServerOptimizer(torch.optim.SGD(torch.nn.Linear(3, 2).parameters()))
