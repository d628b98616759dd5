"""Ranks that step on their own and meet now and then."""

from __future__ import annotations

import contextlib
import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import ringcore
import ringcore_torch as ring
import torch
from support.on_ranks import DEVICE, THREE_OVER_TCP, TWO, TWO_ON_GPUS, TWO_OVER_TCP, on
from support.processes import LIMIT_S, clean_environ
from support.torchft import lighthouse, torchft_python

Equal = Callable[[Iterable[torch.Tensor]], bool]
ROUNDING = 1e-13


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Tanh(), torch.nn.Linear(20, 2)).double()


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.randn(8, 6, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE),
        torch.randn(8, 2, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE),
    )


def step(model: torch.nn.Module, optimizer: Any, generator: torch.Generator) -> None:
    optimizer.zero_grad()
    x, y = batch(generator)
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def own_batches() -> torch.Generator:
    return torch.Generator().manual_seed(10 + ring.rank())


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@on(TWO, THREE_OVER_TCP, TWO_ON_GPUS)
@pytest.mark.parametrize("way", ["local", "diloco"])
def test_meeting_at_each_step_is_training_together(way: str, equal_on_all_ranks: Equal) -> None:
    model = net()
    together = copy.deepcopy(model)
    if way == "local":
        optimizer = ring.LocalSGD(sgd(model), model.named_parameters(), every=1)
    else:
        outer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = ring.DiLoCo(sgd(model), outer, model.named_parameters(), every=1)
    reference = ring.DistributedOptimizer(sgd(together), together.named_parameters())
    batches, same = own_batches(), own_batches()
    for _ in range(10):
        step(model, optimizer, batches)
        step(together, reference, same)
        for own, other in zip(model.parameters(), together.parameters(), strict=True):
            assert (own - other).abs().max() < ROUNDING
    assert equal_on_all_ranks(model.parameters())


@on(TWO_OVER_TCP, THREE_OVER_TCP)
@pytest.mark.parametrize("compression", ["bf16", "int8"])
def test_what_is_sent_of_an_average_is_how_far_ranks_have_come(compression: str, equal_on_all_ranks: Equal) -> None:
    models = [net(), net()]
    models[1].load_state_dict(models[0].state_dict())
    kept: dict[str, Any] = {}
    for model, sent in zip(models, ("none", compression), strict=True):
        optimizer = ring.LocalSGD(sgd(model), model.named_parameters(), every=3, compression=sent)
        with torch.no_grad():  # as if it was loaded behind the wrapping
            model[0].bias += 100
        batches = own_batches()
        for number in range(1, 9):
            if number == 5 and sent != "none":  # goes on between two meetings in an optimizer of its own
                kept = copy.deepcopy(optimizer.state_dict())
                optimizer = ring.LocalSGD(sgd(model), model.named_parameters(), every=3, compression=sent)
                optimizer.load_state_dict(kept)
            step(model, optimizer, batches)
            assert equal_on_all_ranks(model.parameters()) == (number % 3 == 0)
        optimizer.synchronize()
        assert equal_on_all_ranks(model.parameters())
    pairs = list(zip(*(model.parameters() for model in models), strict=True))
    # What is rounded is the way, and not the weight of 100.
    largest = max(float((own - other).abs().max()) for own, other in pairs)
    assert largest < 1e-2
    assert compression == "int8" or largest > 1e-9  # so small ones are not quantised


@on(THREE_OVER_TCP)
def test_local_steps_are_averaged_every_so_often(equal_on_all_ranks: Equal) -> None:
    model = net()
    alone = copy.deepcopy(model)
    optimizer = ring.LocalSGD(sgd(model), model.named_parameters(), every=4)
    reference = sgd(alone)
    batches, same = own_batches(), own_batches()
    for number in range(1, 13):
        step(model, optimizer, batches)
        step(alone, reference, same)
        assert equal_on_all_ranks(model.parameters()) == (number % 4 == 0)
        if number % 4 == 0:
            for parameter in alone.parameters():
                parameter.data = ring.allreduce(parameter.data)
        for own, other in zip(model.parameters(), alone.parameters(), strict=True):
            assert (own - other).abs().max() < ROUNDING
    step(model, optimizer, batches)
    optimizer.synchronize()
    assert equal_on_all_ranks(model.parameters())


@on(TWO)
def test_the_outer_optimizer_steps_by_the_average_way(equal_on_all_ranks: Equal) -> None:
    model = net()
    alone = copy.deepcopy(model)
    outer_of: Callable[[Any], Any] = lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True)  # noqa: E731
    optimizer = ring.DiLoCo(
        torch.optim.AdamW(model.parameters(), lr=0.01), outer_of(model.parameters()), model.named_parameters(), every=5
    )
    inner = torch.optim.AdamW(alone.parameters(), lr=0.01)
    shared = [parameter.detach().clone().requires_grad_() for parameter in alone.parameters()]
    outer = outer_of(shared)
    batches, same = own_batches(), own_batches()
    for number in range(1, 21):
        step(model, optimizer, batches)
        step(alone, inner, same)
        if number % 5 == 0:
            for one, parameter in zip(shared, alone.parameters(), strict=True):
                one.grad = ring.allreduce(one.detach() - parameter.detach())
            outer.step()
            for one, parameter in zip(shared, alone.parameters(), strict=True):
                parameter.data = one.detach().clone()
            assert equal_on_all_ranks(model.parameters())
        for own, other in zip(model.parameters(), alone.parameters(), strict=True):
            assert (own - other).abs().max() < ROUNDING


@on(THREE_OVER_TCP)
def test_fragments_take_turns(equal_on_all_ranks: Equal) -> None:
    model = net()
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = ring.DiLoCo(
        sgd(model), outer, model.named_parameters(), every=4, fragments=2, compression=ring.Compression.int8
    )
    batches = own_batches()
    first, second = list(model.parameters())[:1], list(model.parameters())[1:]  # the first is larger than all others
    for number in range(1, 13):
        step(model, optimizer, batches)
        assert equal_on_all_ranks(first) == (number % 4 == 0)
        assert equal_on_all_ranks(second) == (number % 4 == 2)
    assert all(parameter.grad is not None for parameter in model.parameters())


@on(TWO, THREE_OVER_TCP, TWO_ON_GPUS)
def test_ranks_go_on_while_their_ways_are_averaged() -> None:
    model = net()
    alone = copy.deepcopy(model)
    outer = torch.optim.SGD(model.parameters(), lr=0.7)
    optimizer = ring.DiLoCo(sgd(model), outer, model.named_parameters(), every=4, delay=2, alpha=0.25)
    inner = sgd(alone)
    shared = [parameter.detach().clone() for parameter in alone.parameters()]
    averages: list[torch.Tensor] = []
    batches, same = own_batches(), own_batches()
    for number in range(1, 13):
        step(model, optimizer, batches)
        step(alone, inner, same)
        if number % 4 == 2:
            averages = [
                ring.allreduce(one - parameter.detach())
                for one, parameter in zip(shared, alone.parameters(), strict=True)
            ]
        if number % 4 == 0:
            for one, average, parameter in zip(shared, averages, alone.parameters(), strict=True):
                one.sub_(0.7 * average)
                parameter.data = 0.75 * one + 0.25 * parameter.data
        for own, other in zip(model.parameters(), alone.parameters(), strict=True):
            assert (own - other).abs().max() < ROUNDING


@on(TWO)
def test_what_is_under_way_lands_where_ranks_synchronize(equal_on_all_ranks: Equal) -> None:
    model = net()
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = ring.DiLoCo(sgd(model), outer, model.named_parameters(), every=4, delay=3, alpha=0.0)
    batches = own_batches()
    for _ in range(2):
        step(model, optimizer, batches)
    assert not equal_on_all_ranks(model.parameters())
    optimizer.synchronize()
    assert equal_on_all_ranks(model.parameters())
    for _ in range(2):  # the outer step that was due has been taken
        step(model, optimizer, batches)
    assert not equal_on_all_ranks(model.parameters())


@on(TWO)
@pytest.mark.parametrize("delay", [0, 2])
def test_an_outer_state_is_kept(delay: int) -> None:
    model = net()

    def wrapped() -> Any:
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9)
        return ring.DiLoCo(sgd(model), outer, model.named_parameters(), every=3, delay=delay)

    optimizer = wrapped()
    batches = own_batches()
    for _ in range(4):
        step(model, optimizer, batches)
    state, values = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    place = batches.get_state()
    for _ in range(5):
        step(model, optimizer, batches)
    expected = copy.deepcopy(model.state_dict())
    model.load_state_dict(values)
    again = wrapped()
    again.load_state_dict(state)
    batches.set_state(place)
    for _ in range(5):
        step(model, again, batches)
    assert all(torch.equal(expected[name], value) for name, value in model.state_dict().items())


@on(TWO)
def test_what_is_under_way_has_arrived_before_another_state_is_taken_over() -> None:
    """Else the next one of its name could be sent too soon."""
    model = net()
    outer = torch.optim.SGD(model.parameters(), lr=0.7)
    optimizer = ring.DiLoCo(sgd(model), outer, model.named_parameters(), every=4, delay=2)
    state = copy.deepcopy(optimizer.state_dict())
    batches = own_batches()
    for _ in range(2):
        step(model, optimizer, batches)
    arrived: list[bool] = []
    averages = optimizer._ways[0]
    optimizer._ways[0] = lambda: arrived.append(True) or averages()
    optimizer.load_state_dict(state)
    assert arrived


@on(TWO)
def test_a_state_of_averages_of_whole_parameters_is_refused_where_ways_are_sent() -> None:
    model = net()
    state = ring.LocalSGD(sgd(model), every=2).state_dict()
    with pytest.raises(ringcore.InvalidArgument, match="LocalSGD without a compression"):
        ring.LocalSGD(sgd(model), every=2, compression="bf16").load_state_dict(state)


def remade(model: torch.nn.Module) -> torch.nn.Module:
    """Other weights on each rank."""
    torch.nn.init.constant_(model[0].weight, 0.1 * ring.rank())
    return model


@on(TWO)
@pytest.mark.parametrize("way", ["LocalSGD", "DiLoCo", "VirtualRanks"])
def test_what_to_do_about_different_weights_is_said_of_what_is_in_use(way: str) -> None:
    model = remade(net())
    with pytest.raises(ringcore.MismatchError) as told:
        if way == "VirtualRanks":
            next(ring.VirtualRanks(4, model).deal(0))
        elif way == "LocalSGD":
            step(model, ring.LocalSGD(sgd(model), every=2), own_batches())
        else:
            step(model, ring.DiLoCo(sgd(model), sgd(model), every=2), own_batches())
    remedy = str(told.value).partition("Remedy: ")[2].splitlines()[0].rstrip(".")
    off = "" if way == "VirtualRanks" else ", or pass check_weights=False if they are to differ"
    assert remedy == f"call broadcast_parameters(model.state_dict(), root_rank=0) before the first step{off}"


@on(TWO)
def test_weights_may_be_broadcast_behind_the_wrapping(equal_on_all_ranks: Equal) -> None:
    model = remade(net())
    outer = torch.optim.SGD(model.parameters(), lr=0.7)
    optimizer = ring.DiLoCo(sgd(model), outer, model.named_parameters(), every=2)
    ring.broadcast_parameters(model.state_dict())
    batches = own_batches()
    for _ in range(2):
        step(model, optimizer, batches)
    assert equal_on_all_ranks(model.parameters())


@on(TWO)
def test_between_meetings_the_one_model_is_in_the_state(equal_on_all_ranks: Equal) -> None:
    """As docs/sending-less.md says."""
    model = net()
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9)
    optimizer = ring.DiLoCo(sgd(model), outer, model.named_parameters(), every=4, fragments=2, delay=1)
    batches = own_batches()
    for _ in range(11):
        step(model, optimizer, batches)
    optimizer.synchronize()
    assert not equal_on_all_ranks(model.parameters())
    names = [name for name, _ in model.named_parameters()]
    weights = dict(zip(names, optimizer.state_dict()["outer"]["anchors"], strict=True))
    shared = copy.deepcopy(model)
    shared.load_state_dict(weights, strict=False)
    assert equal_on_all_ranks(shared.parameters())


@on(TWO)
@pytest.mark.parametrize("steps", [0, 5])
def test_arguments_that_differ_are_told_before_the_first_step(steps: int) -> None:
    """Also where training goes on from a state."""
    model, own = net(), ring.rank()
    compression = ["int8", "bf16"][own]
    outer = torch.optim.SGD(model.parameters(), lr=0.5 + 0.25 * own)
    wrapped = {
        r"LocalSGD with different arguments: every is 2 on ranks \[0\] and 3 on ranks \[1\]\. Remedy": ring.LocalSGD(
            sgd(model), every=2 + own, check_weights=False
        ),
        r"every is 4.* and 6.*; fragments is 1.* and 2.*; delay is 1.* and 2.*; alpha is 0\.5.* and 0\.25.*; "
        r"compression is int8 on ranks \[0\] and bf16 on ranks \[1\]; outer is SGD .*0\.5": ring.DiLoCo(
            sgd(model), outer, every=4 + 2 * own, fragments=1 + own, delay=1 + own, alpha=0.5 - 0.25 * own,
            compression=compression,
        ),
    }  # fmt: skip
    before = copy.deepcopy(model.state_dict())
    for told, optimizer in wrapped.items():
        optimizer._steps = steps
        with pytest.raises(ringcore.MismatchError, match=told):
            step(model, optimizer, own_batches())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def made(model: torch.nn.Module, way: str, delay: int) -> Any:
    if way == "local":
        return ring.LocalSGD(sgd(model), model.named_parameters(), every=4, check_weights=False)
    outer = torch.optim.SGD(model.parameters(), lr=0.7)
    return ring.DiLoCo(
        sgd(model), outer, model.named_parameters(), every=4, fragments=2, delay=delay, check_weights=False
    )  # fmt: skip


WAYS = [("local", 0), ("diloco", 0), ("diloco", 1), ("diloco", 3)]


@on(TWO)
@pytest.mark.parametrize(("way", "delay"), WAYS)
def test_a_state_that_not_all_ranks_have_loaded_is_told_before_the_first_step(way: str, delay: int) -> None:
    """A node has lost its file."""
    model = net()
    optimizer = made(model, way, delay)
    for _ in range(3):
        step(model, optimizer, own_batches())
    again = made(model, way, delay)
    if ring.rank() == 0:
        again.load_state_dict(optimizer.state_dict())
    before = copy.deepcopy(model.state_dict())
    told = r"the loaded state is after 3 steps on ranks \[0\] and None on ranks \[1\]"
    with pytest.raises(ringcore.MismatchError, match=told):
        step(model, again, own_batches())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@on(TWO)
@pytest.mark.parametrize(("way", "delay"), WAYS)
@pytest.mark.parametrize("back", [1, 4])
def test_a_state_that_not_all_ranks_have_loaded_is_told_when_they_meet(back: int, way: str, delay: int) -> None:
    """Also one of so many steps that ranks meet behind the same batch as without it."""
    model = net()
    optimizer = made(model, way, delay)
    kept: list[Any] = []
    for number in range(6):
        if number == 6 - back:
            kept.append(copy.deepcopy(optimizer.state_dict()))
        step(model, optimizer, own_batches())
    if ring.rank() == 1:
        optimizer.load_state_dict(kept[0])

    def go_on() -> None:
        for _ in range(12):
            step(model, optimizer, own_batches())

    told = r"are not at the same step: .*states loaded is 0 on ranks \[0\] and 1 on ranks \[1\]\. Remedy: load "
    with pytest.raises(ringcore.MismatchError, match=told):
        go_on()


@on(TWO)
def test_what_does_not_fit_is_refused() -> None:
    model = net()
    with pytest.raises(ringcore.InvalidArgument, match="at least 1"):
        ring.LocalSGD(sgd(model), every=0)
    with pytest.raises(ringcore.InvalidArgument, match="LocalSGD does not take PowerSGD, which averages all gradients"):
        ring.LocalSGD(sgd(model), every=2, compression=ring.Compression.powersgd(4))
    with pytest.raises(ringcore.InvalidArgument, match="at most every = 2"):
        ring.DiLoCo(sgd(model), sgd(model), every=2, fragments=3)
    with pytest.raises(ringcore.InvalidArgument, match="below every = 2, not 2"):
        ring.DiLoCo(sgd(model), sgd(model), every=2, delay=2)
    with pytest.raises(ringcore.InvalidArgument, match="from 0 to 1, not 2"):
        ring.DiLoCo(sgd(model), sgd(model), every=2, alpha=2)
    with pytest.raises(ringcore.InvalidArgument, match="compression is one of none, fp16, bf16, int8, int4"):
        ring.DiLoCo(sgd(model), sgd(model), every=2, compression="int7")
    with pytest.raises(ringcore.InvalidArgument, match="DiLoCo does not take PowerSGD, which averages all gradients"):
        ring.DiLoCo(sgd(model), sgd(model), every=2, compression=ring.Compression.powersgd(4))
    with pytest.raises(ringcore.InvalidArgument, match="other parameters"):
        ring.DiLoCo(sgd(model), sgd(net()), every=2)
    with pytest.raises(ringcore.InvalidArgument, match="wrap it once"):
        ring.LocalSGD(ring.LocalSGD(sgd(model), every=2), every=2)


@pytest.mark.long
@pytest.mark.parametrize(("fragments", "delay", "alpha"), [(1, 0, 0.0), (1, 4, 0.5), (3, 0, 0.0), (3, 1, 0.25)])
def test_diloco_is_torchfts(tmp_path: Path, fragments: int, delay: int, alpha: float) -> None:
    """For 20 outer steps of each fragment, from the same beginning: the weights after each inner step."""
    script = [os.fspath(Path(__file__).with_name("script_diloco.py")), os.fspath(tmp_path)]
    script += [str(fragments), str(delay), str(alpha)]
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        words = {"stdout": stack.enter_context(log.open("w")), "stderr": subprocess.STDOUT, "env": clean_environ()}
        lamp = stack.enter_context(lighthouse("127.0.0.1", replicas=2))
        commands = [[str(torchft_python()), *script, str(rank), lamp] for rank in range(2)]
        commands.append([sys.executable, "-m", "ringcore", "run", "-np", "2", sys.executable, *script])
        processes = []
        for command in commands:
            processes.append(subprocess.Popen(command, **words))
            stack.callback(processes[-1].kill)
        codes = [process.wait(LIMIT_S) for process in processes]
    assert codes == [0, 0, 0], log.read_text()
    for rank in range(2):
        got, expected = (torch.load(tmp_path / f"{by}.{rank}") for by in ("ringcore", "torchft"))
        assert len(got) == len(expected) == 120
        assert (got - expected).abs().max() < ROUNDING
        assert (got[-1] - got[0]).abs().max() > 0.01
