"""Steps that return at once: the same bits, and whoever reads a parameter waits."""

from __future__ import annotations

import copy
import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ringcore
import ringcore_torch as ring
import torch
from support import ranks
from support.on_ranks import DEVICE, TWO, TWO_ON_GPUS, TWO_OVER_TCP, on
from support.rank import caught
from support.torch_models import THREE_IN_ORDER, drawn_model, is_pending, weights

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
}


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of models that diverge, too."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def wrapped(model: torch.nn.Module, overlap: Any, kind: str = "sgd", **options: Any) -> Any:
    return ring.DistributedOptimizer(
        OPTIMIZERS[kind](model.parameters()), model.named_parameters(), overlap=overlap, **options
    )


def sharded(model: torch.nn.Module, overlap: Any) -> Any:
    return ring.ShardedOptimizer(
        OPTIMIZERS["sgd"](model.parameters()), model.named_parameters(),
        overlap="forward" if overlap == "forward" else None,
    )  # fmt: skip


MAKES = {"averaged": wrapped, "gathered": sharded}


def train(model: torch.nn.Module, seed: int, overlap: str, kind: str) -> tuple[torch.Tensor, dict[str, Any], int]:
    """Some steps by a script that is drawn at random.

    Returns:
        The parameters, the optimizer's state, and after how many steps updates were still to be made.
    """
    draw, batches = random.Random(seed), torch.Generator().manual_seed(seed * 10 + ring.rank())
    optimizer = wrapped(model, overlap, kind)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    deferred = 0
    for _ in range(5):
        drops, when, reads = draw.choice([True, True, False]), draw.randrange(3), draw.randrange(6)
        if when == 0:
            optimizer.zero_grad(set_to_none=drops)
        loss = model(torch.randn(5, 6, generator=batches, device="cpu").to(DEVICE)).square().mean()
        if when == 1:
            optimizer.zero_grad(set_to_none=drops)
        loss.backward()
        if reads == 0:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        deferred += is_pending(model)
        schedule.step()
        if when == 2:
            optimizer.zero_grad(set_to_none=drops)
        if reads == 1:
            model.state_dict()
        elif reads == 2:
            optimizer.state_dict()
        elif reads == 3:
            model.load_state_dict({name: value * 0.99 for name, value in model.state_dict().items()})
        elif reads == 4:
            optimizer.param_groups[0]["weight_decay"] = 0.1
    return weights(model), optimizer.state_dict(), deferred


@on(TWO, THREE_IN_ORDER, TWO_ON_GPUS)
@pytest.mark.parametrize(
    "kind", [kind if kind == "adamw" else pytest.param(kind, marks=pytest.mark.long) for kind in OPTIMIZERS]
)
@pytest.mark.parametrize(
    ("first", "count"), [pytest.param(0, 34, id="34"), pytest.param(34, 166, id="166", marks=pytest.mark.long)]
)
def test_the_same_bits_as_without(first: int, count: int, kind: str, equal_on_all_ranks: Callable[..., bool]) -> None:
    deferred = 0
    for seed in range(first, first + count):
        torch.manual_seed(seed)
        with torch.device("cpu"):  # the same weights wherever they are trained: with others some diverge
            model = drawn_model(random.Random(seed))
        model = model.to(DEVICE)
        plain = copy.deepcopy(model)
        expected, expected_state, _ = train(plain, seed, "backward", kind)
        got, state, pending = train(model, seed, "forward", kind)
        deferred += pending
        assert same(got, expected), seed
        for number, of_one in expected_state["state"].items():
            for key, value in of_one.items():
                assert same(torch.as_tensor(state["state"][number][key]), torch.as_tensor(value)), (seed, key)
        assert not got.isfinite().all() or equal_on_all_ranks(model.parameters())
    assert deferred > count


def stepped(overlap: str = "forward", make: Callable[..., Any] = wrapped) -> tuple[torch.nn.Module, Any]:
    """A model whose update has not been made, or whose parameters are gathered."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 3000), torch.nn.Tanh(), torch.nn.Linear(3000, 2))
    optimizer = make(model, overlap)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.full((2, 6), 1.0 + ring.rank() + step)).sum().backward()
        optimizer.step()
    return model, optimizer


READS: dict[str, Callable[[torch.nn.Module, Any], Any]] = {
    "state_dict": lambda model, _: torch.cat([value.flatten() for value in model.state_dict().values()]),
    "data": lambda model, _: torch.cat([parameter.data.flatten() for parameter in model.parameters()]),
    "deepcopy": lambda model, _: weights(copy.deepcopy(model)),
    "pickle": lambda model, _: weights(saved(model)),
    "numpy": lambda model, _: torch.cat(
        [torch.from_numpy(parameter.detach().numpy().copy()).flatten() for parameter in model.parameters()]
    ),
    "foreach": lambda model, _: torch.cat([one.flatten() for one in torch._foreach_mul(list(model.parameters()), 1.0)]),
    "vector": lambda model, _: torch.nn.utils.parameters_to_vector(model.parameters()).detach(),
    "eval": lambda model, _: model.eval()(torch.ones(1, 6)).detach().flatten(),
    "gradients": lambda model, _: torch.cat([parameter.grad.flatten() for parameter in model.parameters()]),
    "allreduce": lambda model, _: torch.cat(
        [ring.allreduce(one.flatten(), name="one").detach() for one in model.parameters()]
    ),
    "in place": lambda model, _: [ring.broadcast_(one, 0, name="one") for one in model.parameters()] and weights(model),
    "traced": lambda model, _: torch.jit.trace(model, torch.ones(1, 6))(torch.ones(1, 6)).detach().flatten(),
    "scripted": lambda model, _: torch.jit.script(model)(torch.ones(1, 6)).detach().flatten(),
    "functional": lambda model, _: torch.func.functional_call(
        model, dict(model.named_parameters()), torch.ones(1, 6)
    ).detach().flatten(),
    "gradient": lambda model, _: torch.func.grad(
        lambda parameters: torch.func.functional_call(model, parameters, torch.ones(1, 6)).sum()
    )(dict(model.named_parameters()))["0.weight"].flatten(),
    "optimizer": lambda _, optimizer: torch.cat(
        [one["momentum_buffer"].flatten() for one in optimizer.state_dict()["state"].values()]
    ),
    "by hand": lambda model, _: (torch.nn.functional.linear(torch.ones(1, 6), model[0].weight)).detach().flatten(),
}  # fmt: skip


def saved(model: torch.nn.Module) -> torch.nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: torch.nn.Module = torch.load(file, weights_only=False)
    return loaded


# What is gathered has its gradients, and the optimizer's state has another form.
WAITS = [("averaged", read) for read in READS]
WAITS += [("gathered", read) for read in READS if read not in ("gradients", "optimizer")]


@on(TWO_OVER_TCP)
@pytest.mark.parametrize(("make", "read"), WAITS)
def test_whoever_reads_waits(make: str, read: str) -> None:
    expected_of, optimizer_of_expected = stepped("backward", MAKES[make])
    model, optimizer = stepped("forward", MAKES[make])
    assert is_pending(model)
    assert torch.equal(READS[read](model, optimizer), READS[read](expected_of, optimizer_of_expected))
    assert torch.equal(weights(model), weights(expected_of))
    assert not is_pending(model)


def forget_compiled() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@on(TWO_OVER_TCP)
@pytest.mark.parametrize("make", list(MAKES))
def test_what_is_compiled_reads_what_was_stepped_and_then_nothing_waits_any_more(
    make: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = weights(stepped("backward", MAKES[make])[0])
    reads: list[Callable[[Any], Any]] = [lambda model: model, lambda model: lambda x: x @ model[0].weight.t()]
    try:
        for read in reads:
            forget_compiled()
            model, _ = stepped("forward", MAKES[make])
            assert is_pending(model)
            torch.compile(read(model), backend="aot_eager")(torch.ones(1, 6))
            assert torch.equal(weights(model), expected)
            assert not is_pending(stepped("forward", MAKES[make])[0])
    finally:
        forget_compiled()
    assert sum("torch.compile has" in record.message for record in caplog.records) == len(reads)


def by_closure(model: torch.nn.Module, optimizer: Any) -> None:
    optimizer.step(lambda: 0.0)


def clipped(model: torch.nn.Module, optimizer: Any) -> None:
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with optimizer.skip_synchronize():
        optimizer.step()


def scaled(model: torch.nn.Module, optimizer: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.zeros(()))
    scaler.step(optimizer)


def hooked(model: torch.nn.Module, optimizer: Any) -> None:
    hook = optimizer.register_step_post_hook(lambda *_: None)
    optimizer.step()
    hook.remove()


WHOLE = {"a closure": by_closure, "asked for": clipped, "GradScaler": scaled, "hooks": hooked}


@on(TWO_OVER_TCP)
@pytest.mark.parametrize("why", list(WHOLE))
def test_a_step_that_needs_all_gradients_waits_and_says_so_once(why: str, caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = stepped()
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        WHOLE[why](model, optimizer)
        assert not is_pending(model)
    assert [why in record.message for record in caplog.records] == [True]
    optimizer.zero_grad()
    model(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    assert is_pending(model)  # one that does not need them


@on(TWO_OVER_TCP)
def test_an_optimizer_that_may_need_all_gradients_waits(caplog: pytest.LogCaptureFixture) -> None:
    class Global(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    model = torch.nn.Linear(3, 2)
    optimizer: Any = Global(model.parameters(), lr=0.1)
    optimizer = ring.DistributedOptimizer(optimizer, model.named_parameters(), overlap="forward")
    for _ in range(3):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        assert not is_pending(model)
    assert ["step of Global may need all gradients" in record.message for record in caplog.records] == [True]


@on(TWO_OVER_TCP)
def test_sparse_gradients(caplog: pytest.LogCaptureFixture) -> None:
    models = [torch.nn.Embedding(10, 3, sparse=True) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model, overlap in zip(models, ("backward", "forward"), strict=True):
        optimizer = ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), overlap=overlap
        )
        for step in range(4):
            model.zero_grad()
            # In the second step for the first time: the others were dense, with this rank alone it is sparse.
            rows = model(torch.tensor([ring.rank(), 5]))
            (rows.sum() if step else model.weight.sum()).backward()
            optimizer.step()
    assert torch.equal(models[0].weight, models[1].weight)
    assert [record.message for record in caplog.records if "sparse" in record.message]


@on(TWO_OVER_TCP)
def test_a_graph_from_before_the_step() -> None:
    """Its gradients are those of the next step."""
    outcomes = []
    for overlap in ("backward", "forward"):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = wrapped(model, overlap)
        for _ in range(3):
            first, second = (model(torch.full((1, 3), scale + ring.rank())).sum() for scale in (1.0, 2.0))
            optimizer.zero_grad()
            first.backward()
            optimizer.step()
            optimizer.zero_grad()
            second.backward()
            optimizer.step()
        outcomes.append(weights(model))
    assert torch.equal(*outcomes)


@on(TWO_OVER_TCP)
def test_the_first_forward_tells_what_is_urgent() -> None:
    torch.manual_seed(0)
    first, last = torch.nn.Linear(6, 3000, bias=False), torch.nn.Linear(3000, 6, bias=False)
    model = torch.nn.ModuleDict({"last": last, "first": first})
    optimizer = wrapped(model, "forward", groups=[[last.weight], [first.weight]])
    for _ in range(3):
        optimizer.zero_grad()
        last(first(torch.ones(1, 6))).sum().backward()
        optimizer.step()
    priorities = {bucket.names[0]: bucket.priority for bucket in optimizer._ring.buckets}
    assert priorities["first.weight"] > priorities["last.weight"]


@on(TWO)
def test_words() -> None:
    model = torch.nn.Linear(3, 2)
    with pytest.raises(ringcore.InvalidArgument, match="backward"):
        wrapped(model, "sideways")
    with pytest.raises(ringcore.InvalidArgument, match="begins when all gradients are there"):
        wrapped(model, "forward", compression=ring.Compression.topk(0.1))
    with pytest.raises(ringcore.InvalidArgument, match="begins when all gradients are there"):
        wrapped(model, "forward", op=ring.Adasum)


def steps_without_the_other() -> object:
    import ringcore_torch as ring
    import torch

    ringcore.init()
    model = torch.nn.Linear(6, 3000)
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), broadcast=True, overlap="forward"
    )

    def step_and_read() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        if ringcore.rank() == 1:
            os._exit(3)
        optimizer.step()
        model.state_dict()

    model(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    told = caught(step_and_read)
    return [told["type"], told["message"], type(model.weight) is torch.nn.Parameter]


def test_that_a_rank_is_lost_is_told_where_a_parameter_is_read(tmp_path: Path) -> None:
    with ranks.started(steps_without_the_other, 2, tmp_path) as job:
        outcome = job.wait()[0]
    kind, message, is_itself = outcome.result or ["", outcome.stderr, False]
    assert kind == "PeerLostError", message
    assert "rank 1" in message
    assert is_itself
