"""An optimizer of which each rank has a share steps as the whole one does."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import ringcore
import ringcore_torch as ring
import torch
from ringcore import adapter
from ringcore_torch import flat
from support import ranks
from support.on_ranks import DEVICE, THREE_OVER_TCP, TWO, TWO_ON_GPUS, TWO_OVER_TCP, on
from support.rank import await_mark, caught, mark
from support.torch_models import THREE_IN_ORDER, drawn_model, is_pending, weights

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


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("overlap", [None, "backward"])
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_gradients_are_sent_in_half_the_bytes(compression: str, overlap: Any, equal_on_all_ranks: Equal) -> None:
    model = Net().double()
    alone = copy.deepcopy(model)
    sent = ring.ShardedOptimizer(
        WAYS["sgd"](groups_of(model)), model.named_parameters(), compression=compression, overlap=overlap
    )
    whole = ring.ShardedOptimizer(WAYS["sgd"](groups_of(alone)), alone.named_parameters())
    for number in range(4):
        for net, optimizer in ((model, sent), (alone, whole)):
            optimizer.zero_grad()
            x = torch.randn(
                4, 7, generator=torch.Generator().manual_seed(10 * number + ring.rank()), dtype=torch.float64
            )
            net(x, ring.rank()).square().mean().backward()
            optimizer.step()
    assert equal_on_all_ranks(model.parameters())
    largest = max(
        float((own - other).abs().max()) for own, other in zip(model.parameters(), alone.parameters(), strict=True)
    )
    assert 1e-9 < largest < 1e-2
    assert {row._sent.dtype for row in sent._flats} == {getattr(ring.Compression, compression).wire_dtype}


@on(THREE_OVER_TCP)
@pytest.mark.parametrize("overlap", [None, "backward", "forward"])
@pytest.mark.parametrize(("passes", "clip"), [(3, None), (1, 0.05), (2, 0.05)])
def test_accumulation_and_clipping(passes: int, clip: float | None, overlap: Any) -> None:
    model = Net().double()
    alone = copy.deepcopy(model)
    optimizer = ring.ShardedOptimizer(
        WAYS["adamw"](groups_of(model)), model.named_parameters(), overlap=overlap, backward_passes_per_step=passes
    )
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


@on(TWO, TWO_ON_GPUS)
def test_own_gradients_are_not_clipped(equal_on_all_ranks: Equal) -> None:
    model = torch.nn.Linear(3, 2)
    ring.broadcast_parameters(model.state_dict())
    optimizer = ring.ShardedOptimizer(WAYS["sgd"](model.parameters()), model.named_parameters())
    before = weights(model)
    for averages_first in (False, True):
        model(torch.ones(1, 3)).sum().backward()
        if averages_first:
            optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)  # also where it changes no value
        with pytest.raises(ringcore.InvalidArgument, match=r"'weight' was changed in place .*optimizer.clip_grad_norm"):
            optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(weights(model), before)
    for way in ("nothing", "assigned", "added up"):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        if way == "assigned":
            model.weight.grad = (1.0 + ring.rank()) * model.weight.grad
        if way == "added up":
            model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert not torch.equal(weights(model), before)
    assert equal_on_all_ranks(model.parameters())


@on(TWO, TWO_ON_GPUS)
def test_with_a_scaler_the_weights_are_those_without(equal_on_all_ranks: Equal) -> None:
    model = torch.nn.Linear(3, 2)
    ring.broadcast_parameters(model.state_dict())
    start = copy.deepcopy(model.state_dict())

    def trained(scaler: Any, clips: bool) -> torch.Tensor:
        model.load_state_dict(start)
        plain = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        optimizer = ring.ShardedOptimizer(plain, model.named_parameters())
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 3), 1.0 + ring.rank())).square().mean()).backward()
            if clips:
                scaler.unscale_(optimizer)
                optimizer.clip_grad_norm(0.01)
            scaler.step(optimizer)
            scaler.update()
        return weights(model)

    def scaler(**options: Any) -> Any:
        return torch.amp.GradScaler(DEVICE, init_scale=1024.0, **options)

    for clips in (False, True):
        assert torch.equal(trained(scaler(enabled=False), clips), trained(scaler(), clips))
        assert equal_on_all_ranks(model.parameters())
    optimizer = ring.ShardedOptimizer(WAYS["sgd"](model.parameters()), model.named_parameters())
    once = scaler()
    once.scale(model(torch.ones(1, 3)).sum()).backward()
    once.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    with pytest.raises(ringcore.InvalidArgument, match="was changed in place"):
        once.step(optimizer)


@on(TWO)
@pytest.mark.parametrize("way", ["adamw", "adafactor"])
@pytest.mark.parametrize("form", ["share", "full"])
def test_the_state_of_another_model_is_refused(way: str, form: str) -> None:
    def made(width: int, layers: int = 1) -> tuple[Any, torch.nn.Module]:
        model = torch.nn.Sequential(*(torch.nn.Linear(8, width, bias=False) for _ in range(layers)))
        plain = torch.optim.Adafactor(model.parameters()) if way == "adafactor" else WAYS[way](model.parameters())
        return ring.ShardedOptimizer(plain, model.named_parameters(), check_weights=False), model

    optimizer, model = made(20)
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    state = optimizer.full_state_dict() if form == "full" else optimizer.state_dict()
    made(20)[0].load_state_dict(state)
    other, model = made(30)
    for group in other.param_groups:
        group["lr"] = 7.0
    shapes = {
        ("adamw", "full"): r"'exp_avg' of '0.weight' has the shape \[20, 8\], and here it is \[30, 8\]",
        ("adamw", "share"): r"'exp_avg' of this rank's part of '0.weight' has the shape \[80\], and here it is \[120\]",
    }
    # Adafactor's matrix is one rank's.
    whole = r"'row_var' of .*'0.weight' has the shape \[20, 1\], and here it is \[30, 8\]"
    if way != "adafactor" or form != "share" or state["share"]:
        with pytest.raises(ringcore.InvalidArgument, match=shapes.get((way, form), whole)):
            other.load_state_dict(state)
        assert other.param_groups[0]["lr"] == 7.0
    with pytest.raises(ringcore.InvalidArgument, match=r"groups have \[1\] parameters, and here they have \[2\]"):
        made(20, layers=2)[0].load_state_dict(state)


@on(TWO)
def test_what_a_sharded_optimizer_does_not_take() -> None:
    model = torch.nn.Linear(3, 3)
    with pytest.raises(ringcore.InvalidArgument, match="not known to work by element"):
        ring.ShardedOptimizer(torch.optim.LBFGS(model.parameters()))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ringcore.InvalidArgument, match="reduce-scatters gradients, and int8 is for allreduces"):
        ring.ShardedOptimizer(inner, compression="int8")
    with pytest.raises(ringcore.InvalidArgument, match="ShardedOptimizer does not take TopK"):
        ring.ShardedOptimizer(inner, compression=ring.Compression.topk())
    optimizer = ring.ShardedOptimizer(inner)
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


OVERLAPPED: dict[str, Make] = {
    "sgd": WAYS["sgd"],
    "adamw": WAYS["adamw"],
    "adagrad": WAYS["adagrad"],
    "adafactor": BY_PARAMETER["adafactor"],
}


def train_by_script(model: torch.nn.Module, seed: int, way: str, overlap: Any) -> tuple[torch.Tensor, Any, int]:
    """Some steps by a script that is drawn at random.

    Returns:
        The parameters, the optimizer's state, and after how many steps parameters were on their way, less all steps.
    """
    draw, batches = random.Random(seed), torch.Generator().manual_seed(seed * 10 + ring.rank())
    passes = draw.choice([1, 1, 2])
    optimizer = ring.ShardedOptimizer(
        OVERLAPPED[way](model.parameters()), model.named_parameters(), overlap=overlap, backward_passes_per_step=passes
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    pending = 0
    for _ in range(5):
        drops, clips, reads = draw.choice([True, False]), draw.randrange(3), draw.random()
        zeroes = draw.choice([optimizer, model, None])
        if zeroes is not None:
            zeroes.zero_grad(set_to_none=drops)
        for _ in range(passes):
            model(torch.randn(5, 6, generator=batches)).square().mean().backward()
        if clips == 1:  # leave out what has come
            optimizer.zero_grad()
            continue
        if clips == 0:
            optimizer.clip_grad_norm(0.1)
        optimizer.step()
        pending += is_pending(model) - 1
        schedule.step()
        if reads < 0.2:
            model.load_state_dict({name: value * 0.99 for name, value in model.state_dict().items()})
        elif reads < 0.4:
            optimizer.load_state_dict(optimizer.state_dict())
        elif reads < 0.6:
            copy.deepcopy(model)
    return weights(model), optimizer.full_state_dict(), pending


@on(TWO, THREE_IN_ORDER)
@pytest.mark.parametrize("way", OVERLAPPED)
def test_the_same_bits_where_communication_is_hidden(
    way: str, equal_on_all_ranks: Equal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat, "SOONER_BUCKET_BYTES", 1 << 10)
    for seed in range(20):
        torch.manual_seed(seed)
        model = drawn_model(random.Random(seed))
        plain = copy.deepcopy(model)
        expected, expected_state, not_pending = train_by_script(plain, seed, way, None)
        assert not_pending < 0
        got, state, not_pending = train_by_script(model, seed, way, "forward")
        assert not_pending == 0
        assert torch.equal(got, expected), seed
        assert set(state["state"]) == set(expected_state["state"])
        for index, kept in expected_state["state"].items():
            for key, value in kept.items():
                assert torch.equal(torch.as_tensor(state["state"][index][key]), torch.as_tensor(value)), (seed, key)
        assert equal_on_all_ranks(model.parameters())


@on(TWO_OVER_TCP)
def test_a_row_is_sent_when_its_last_gradient_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "SOONER_BUCKET_BYTES", 1 << 10)
    model = torch.nn.Sequential(torch.nn.Linear(6, 300), torch.nn.Linear(300, 6))
    optimizer = ring.ShardedOptimizer(
        WAYS["sgd"](model.parameters()), model.named_parameters(), overlap="backward", backward_passes_per_step=2
    )

    def under_way() -> list[bool]:
        return [row.wait is not None for row in optimizer._scatters._rows]

    for _ in range(2):
        for _ in range(2):
            assert under_way() == [False] * 4
            model(torch.ones(1, 6)).sum().backward()
        assert under_way() == [True] * 4
        optimizer.step()
        assert not is_pending(model)
        model.zero_grad()
    for _ in range(2):
        model[1](torch.ones(1, 300)).sum().backward()
    assert under_way() == [False, False, True, True]
    optimizer.step()
    assert under_way() == [False] * 4


@on(TWO_OVER_TCP)
def test_what_is_sent_may_not_be_changed() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = ring.ShardedOptimizer(WAYS["sgd"](model.parameters()), model.named_parameters(), overlap="backward")

    def backward() -> None:
        model(torch.ones(1, 3)).sum().backward()

    def changed() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    def replaced() -> None:
        model.bias.grad = torch.ones(2)
        optimizer.step()

    before = weights(model)
    for wrong, why in ((backward, "more than backward_passes_per_step = 1"), (changed, "was changed"),
                       (replaced, "'bias' was changed")):  # fmt: skip
        backward()
        with pytest.raises(ringcore.InvalidArgument, match=why):
            wrong()
        optimizer.zero_grad()
    assert torch.equal(weights(model), before)
    backward()
    optimizer.step()
    assert not torch.equal(weights(model), before)


@on(TWO_OVER_TCP)
def test_gradients_are_dropped_while_parameters_are_on_their_way() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = ring.ShardedOptimizer(WAYS["sgd"](model.parameters()), model.named_parameters(), overlap="forward")
    for zeroes in (optimizer, model):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        assert model.weight.grad is not None
        zeroes.zero_grad(set_to_none=False)
        assert not model.weight.grad.any()
        zeroes.zero_grad()
        assert model.weight.grad is None
        assert is_pending(model)
        model.weight.sum()
        assert not is_pending(model)


@on(TWO_OVER_TCP)
def test_what_is_read_first_is_gathered_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "SOONER_BUCKET_BYTES", 1 << 10)
    priorities: dict[int, int] = {}
    start = flat.FlatParameters.start_allgather

    def noting(row: flat.FlatParameters, priority: int = 0) -> flat.Wait:
        priorities[id(row.parameters[0])] = priority
        return start(row, priority)

    monkeypatch.setattr(flat.FlatParameters, "start_allgather", noting)
    first, last = torch.nn.Linear(6, 3000, bias=False), torch.nn.Linear(3000, 6, bias=False)
    model = torch.nn.ModuleDict({"last": last, "first": first})
    optimizer = ring.ShardedOptimizer(WAYS["sgd"](model.parameters()), model.named_parameters(), overlap="forward")
    told = []
    for _ in range(3):
        last(first(torch.ones(1, 6))).sum().backward()
        optimizer.step()
        told.append(priorities[id(first.weight)] > priorities[id(last.weight)])
    assert told == [False, True, True]


@on(TWO_OVER_TCP)
def test_a_module_waits_for_no_others_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "SOONER_BUCKET_BYTES", 1 << 10)
    model = torch.nn.Sequential(torch.nn.Linear(6, 3000), torch.nn.Linear(3000, 6))
    optimizer = ring.ShardedOptimizer(WAYS["sgd"](model.parameters()), model.named_parameters(), overlap="forward")
    model(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    hidden = model[0](torch.ones(1, 6))
    assert [is_pending(layer) for layer in model] == [False, True]
    model[1](hidden)
    assert not is_pending(model)


@on(TWO_OVER_TCP)
@pytest.mark.parametrize("overlap", [None, "forward"])
def test_backward_of_what_was_computed_from_old_values_says_so(overlap: Any) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = ring.ShardedOptimizer(WAYS["sgd"](model.parameters()), model.named_parameters(), overlap=overlap)
    older, newer = (model(torch.ones(1, 3, requires_grad=True)).sum() for _ in range(2))
    newer.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        older.backward()


@on(TWO_OVER_TCP)
def test_where_gathering_cannot_be_hidden(caplog: pytest.LogCaptureFixture) -> None:
    class Own(torch.nn.Parameter):
        """Of a class that is not to be changed."""

    model = torch.nn.Linear(3, 2)
    model.weight = Own(model.weight.detach())
    optimizer = ring.ShardedOptimizer(WAYS["sgd"](model.parameters()), model.named_parameters(), overlap="forward")
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert type(model.weight) is Own
    assert ["of the class Own" in record.message for record in caplog.records] == [True]
    with pytest.raises(ringcore.InvalidArgument, match='"backward", "forward" or None'):
        ring.ShardedOptimizer(WAYS["sgd"](model.parameters()), overlap="sideways")  # type: ignore[arg-type]
    with pytest.raises(ringcore.InvalidArgument, match="at least 1"):
        ring.ShardedOptimizer(WAYS["sgd"](model.parameters()), overlap="forward", backward_passes_per_step=0)


def gathers_without_the_other() -> object:
    import ringcore_torch as ring
    import torch

    ringcore.init()
    model = torch.nn.Linear(6, 3000)
    optimizer = ring.ShardedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), broadcast=True, overlap="forward"
    )
    model(torch.ones(1, 6)).sum().backward()
    if ringcore.rank() == 1:  # it has averaged its share, and others wait for what it makes of it
        optimizer.register_step_pre_hook(lambda *_: await_mark("stepped", 0) or os._exit(3))
    optimizer.step()
    mark("stepped")
    told = caught(model.state_dict)
    return [told["type"], told["message"], type(model.weight) is torch.nn.Parameter]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_that_a_rank_is_lost_is_told_where_a_gathered_parameter_is_read(tmp_path: Path, transport: str) -> None:
    with ranks.started(gathers_without_the_other, 2, tmp_path, env={"RINGCORE_TRANSPORT": transport}) as job:
        outcome = job.wait()[0]
    kind, message, is_itself = outcome.result or ["", outcome.stderr, False]
    assert kind == "PeerLostError", message
    assert "rank 1" in message
    assert "the values of 'weight' to 'bias'" in message
    assert is_itself
