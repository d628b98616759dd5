"""Sums of those gradients that are there first: the same on all ranks, never of too old ones, and nobody is held up."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import ringcore
import ringcore_torch as ring
import torch
from support.on_ranks import THREE_OVER_TCP, TWO, on

Equal = Callable[[Iterable[torch.Tensor]], bool]

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
}


class Net(torch.nn.Module):
    """Of two dtypes, with a layer that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(7, 31), torch.nn.Tanh()).double()
        self.head = torch.nn.Linear(31, 3)
        self.nobody = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.body(x).float())
        return y


def learn(model: Net, optimizer: Any, generator: torch.Generator) -> None:
    """One step, by a batch of this rank's own."""
    optimizer.zero_grad()
    x = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    model(x).square().mean().backward()
    optimizer.step()


def batches() -> torch.Generator:
    """Of this rank."""
    return torch.Generator().manual_seed(ring.rank())


class Updates:
    """What has become of the newest weights after each sum, on this rank."""

    def __init__(self, optimizer: Any, wanted: int = 0) -> None:
        self.weights: list[bytes] = []
        self.came = threading.Event()

        def note(*_: Any) -> None:
            rows = [parameter.detach().double().flatten() for parameter in optimizer._newest]
            self.weights.append(torch.cat(rows).numpy().tobytes())
            if len(self.weights) >= wanted:
                self.came.set()

        optimizer._inner.register_step_post_hook(note)


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_with_all_ranks_and_no_staleness_it_is_synchronous_training(kind: str) -> None:
    models = [Net(), Net()]
    synchronous = ring.DistributedOptimizer(OPTIMIZERS[kind](models[0].parameters()), models[0].named_parameters())
    asynchronous = ring.AsyncOptimizer(
        OPTIMIZERS[kind](models[1].parameters()), models[1].named_parameters(), staleness=0
    )
    for model, optimizer in zip(models, (synchronous, asynchronous), strict=True):
        generator = batches()
        for _ in range(6):
            learn(model, optimizer, generator)
    assert asynchronous.updates == 6
    assert asynchronous.dropped == asynchronous.oldest == 0
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-7)
        if ring.size() == 2:  # whose sums have one order only
            assert torch.equal(one, other)
    asynchronous.synchronize()


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("compression", ["fp16", "bf16", "int8"])
def test_what_is_sent_of_a_sum_is_rounded_and_all_ranks_have_the_same(
    compression: str, equal_on_all_ranks: Equal
) -> None:
    models = [Net(), Net()]
    for model, sent in zip(models, ("none", compression), strict=True):
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = ring.AsyncOptimizer(inner, staleness=0, compression=sent)
        generator = batches()
        for _ in range(4):
            learn(model, optimizer, generator)
        optimizer.synchronize()
        assert equal_on_all_ranks(model.parameters())
    pairs = list(zip(*(model.parameters() for model in models), strict=True))
    assert all(torch.allclose(*pair, rtol=0.02, atol=2e-3) for pair in pairs)
    is_whole = all(torch.allclose(*pair, rtol=1e-6, atol=1e-7) for pair in pairs)
    in_memory = os.environ.get("RINGCORE_TRANSPORT") != "tcp"
    assert is_whole == (compression == "int8" and in_memory)  # where nothing is quantised


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("threshold", [1, 2])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_all_ranks_step_by_the_same_sums(threshold: int, staleness: int, equal_on_all_ranks: Equal) -> None:
    model = Net()
    optimizer = ring.AsyncOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01), staleness=staleness, threshold=threshold
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    updates, generator, draw = Updates(optimizer), batches(), random.Random(ring.rank())
    for _ in range(3):
        for _ in range(draw.randrange(1, 15)):
            for _ in range(draw.randrange(1 + 20 * ring.rank())):  # the last ranks are the slowest
                torch.randn(50, 50) @ torch.randn(50, 50)
            learn(model, optimizer, generator)
            schedule.step()
        optimizer.synchronize()
        assert optimizer.updates == len(updates.weights)
        assert equal_on_all_ranks(model.parameters())  # behind it others may have gone on
    everybody = ringcore.allgather_object(updates.weights, name="updates")
    assert all(other == updates.weights for other in everybody)
    assert optimizer.oldest <= staleness
    made = sum(ringcore.allgather_object(optimizer.dropped, name="dropped"))
    if staleness == 0 and threshold == ring.size():
        assert made == 0


@on(TWO, THREE_OVER_TCP)
def test_a_slow_rank_holds_nobody_up_and_what_it_brings_too_late_is_dropped(equal_on_all_ranks: Equal) -> None:
    model, slow, steps = Net(), ring.size() - 1, 12
    optimizer = ring.AsyncOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), staleness=2, threshold=1)
    updates, generator = Updates(optimizer, wanted=steps), batches()
    if ring.rank() == 0:
        for _ in range(steps):  # with nobody's help
            learn(model, optimizer, generator)
    elif ring.rank() == slow:
        optimizer.zero_grad()
        x = torch.randn(4, 7, generator=generator, dtype=torch.float64)
        loss = model(x).square().mean()
        optimizer._steps.started()
        assert updates.came.wait(60), "the others were held up"
        loss.backward()  # of weights that nobody had changed meanwhile
        optimizer.step()
        assert optimizer.updates >= steps
    optimizer.synchronize()
    assert optimizer.dropped == int(ring.rank() == slow)
    assert equal_on_all_ranks(model.parameters())
    assert optimizer.updates == steps


@on(TWO)
def test_whoever_goes_on_first_changes_nothing_that_others_have_not_taken_yet(equal_on_all_ranks: Equal) -> None:
    model = Net()
    optimizer = ring.AsyncOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), staleness=1, threshold=1)
    learn(model, optimizer, batches())
    optimizer.synchronize()
    updates, take_newest = Updates(optimizer, wanted=1), optimizer._steps._take

    def take_late() -> None:
        plain_barrier("offered")
        assert not updates.came.wait(0.3), "the other rank's sum came in between"
        take_newest()

    def plain_barrier(name: str) -> None:
        ringcore.allgather_object(None, name=name)

    if ring.rank() == 0:
        optimizer._steps._take = take_late
    optimizer.synchronize()
    weights = [parameter.clone() for parameter in model.parameters()]
    optimizer._steps._take = take_newest
    if ring.rank() == 1:
        learn(model, optimizer, batches())
        plain_barrier("offered")
    optimizer.synchronize()
    assert equal_on_all_ranks(weights) and equal_on_all_ranks(model.parameters())


@on(TWO)
def test_what_is_kept_goes_on_as_if_nothing_had_been(equal_on_all_ranks: Equal) -> None:
    models, ends = [Net(), Net()], []
    kept: dict[str, Any] = {}
    for number, model in enumerate(models):
        optimizer = ring.AsyncOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01), staleness=0)
        generator = batches()
        for step in range(6):
            if step == 3 and number == 0:
                optimizer.synchronize()
                kept = {"model": {k: v.clone() for k, v in model.state_dict().items()}, "it": optimizer.state_dict()}
            if step == 3 and number == 1:
                for group in optimizer.param_groups:
                    group["lr"] = 7
                optimizer.synchronize()
                model.load_state_dict(kept["model"])
                optimizer.load_state_dict(kept["it"])
            learn(model, optimizer, generator)
        optimizer.synchronize()
        ends.append([parameter.detach().clone() for parameter in model.parameters()])
        assert equal_on_all_ranks(model.parameters())
    plain = torch.optim.AdamW(models[0].parameters(), lr=0.01)
    plain.load_state_dict(kept["it"])
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))


@on(TWO)
def test_what_cannot_be_is_refused() -> None:
    model = Net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ringcore.InvalidArgument, match="from 1 to 2, not 3"):
        ring.AsyncOptimizer(inner, staleness=1, threshold=3)
    with pytest.raises(ringcore.InvalidArgument, match="from 0, not -1"):
        ring.AsyncOptimizer(inner, staleness=-1)
    with pytest.raises(ringcore.InvalidArgument, match="AsyncOptimizer does not take TopK"):
        ring.AsyncOptimizer(inner, staleness=1, compression=ring.Compression.topk())
    own = type("Own", (ring.Compression.none,), {})
    with pytest.raises(ringcore.InvalidArgument, match="Own is a compression of your own"):
        ring.AsyncOptimizer(inner, staleness=1, compression=own)
    optimizer = ring.AsyncOptimizer(inner, staleness=0)
    with pytest.raises(ringcore.InvalidArgument, match="wrapped already"):
        ring.AsyncOptimizer(optimizer, staleness=0)
    with pytest.raises(ringcore.InvalidArgument, match="no closure"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(ringcore.InvalidArgument, match="no more parameters"):
        optimizer.add_param_group({"params": [torch.zeros(2, requires_grad=True)]})
    learn(model, optimizer, batches())
    with torch.no_grad():
        model.head.bias.zero_()
    with pytest.raises(ringcore.InvalidArgument, match="changed since the last step"):
        learn(model, optimizer, batches())
    optimizer.synchronize()


@on(TWO)
def test_arguments_that_differ_are_told_before_the_first_step() -> None:
    model = Net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ring.AsyncOptimizer(inner, staleness=1, threshold=1 + ring.rank())
    with pytest.raises(
        ringcore.MismatchError, match=r"AsyncOptimizer with different arguments: threshold is 1 on ranks"
    ):
        learn(model, optimizer, batches())


@on(TWO)
def test_models_that_differ_are_told_apart() -> None:
    model = Net()
    with torch.no_grad():
        model.head.bias.fill_(ring.rank())
    optimizer = ring.AsyncOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), staleness=1)
    with pytest.raises(ringcore.MismatchError, match=r"head\.bias"):
        learn(model, optimizer, batches())
