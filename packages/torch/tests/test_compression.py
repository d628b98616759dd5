"""Gradients of which less is sent: what becomes of the sums, and that what is lost comes back."""

from __future__ import annotations

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
from ringcore import adapter
from support.on_ranks import THREE_OVER_TCP, TWO, TWO_OVER_TCP, on

Equal = Callable[[Iterable[torch.Tensor]], bool]
EXCHANGES: dict[str, Callable[[], adapter.Exchange]] = {
    "powersgd": lambda: ring.Compression.powersgd(2),
    "topk": lambda: ring.Compression.topk(0.05),
    "onebit": ring.Compression.onebit,
}
QUANTISED = {"int8": (ring.Compression.int8, 127), "int4": (ring.Compression.int4, 7)}


def own_gradient(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(ring.rank() + 1)
    return torch.rand(count, generator=generator, dtype=dtype) * 2 - 1


def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    return ring.allreduce(tensor, op=ring.Sum)


def sent_bytes() -> int:
    return int(ringcore.statistics()["bytes_sent"].get("tcp", 0))


@on(TWO_OVER_TCP, THREE_OVER_TCP)
@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantised_sums_are_near_and_equal(kind: str, dtype: torch.dtype, equal_on_all_ranks: Equal) -> None:
    compression, most = QUANTISED[kind]
    own = own_gradient(100_000, dtype)
    before = sent_bytes()
    got = ring.allreduce(own, op=ring.Sum, compression=compression)
    sent = sent_bytes() - before
    assert sent < 2 * own.numel() * 4 / (3.5 if kind == "int8" else 7)
    exact = sum_over_ranks(own)
    assert (got - exact).abs().max() <= ring.size() ** 2 * 0.51 / most
    assert (got - exact).abs().max() > 0
    assert equal_on_all_ranks([got])
    grouped = ring.grouped_allreduce([own, own[:5000]], op=ring.Sum, compression=compression)
    assert (grouped[1] - exact[:5000]).abs().max() <= ring.size() ** 2 * 0.51 / most


@on(TWO_OVER_TCP)
def test_integers_and_halves_are_left_as_they_are() -> None:
    for dtype in (torch.int64, torch.float16):
        own = torch.full((9000,), ring.rank() + 1).to(dtype)
        assert ring.allreduce(own, op=ring.Sum, compression=ring.Compression.int4).eq(3).all()


@on(TWO_OVER_TCP)
def test_a_quantised_sum_has_a_gradient() -> None:
    own = own_gradient(50_000).requires_grad_()
    ring.allreduce(own, op=ring.Sum, compression=ring.Compression.int8).sum().backward()
    assert own.grad is not None
    assert (own.grad - 2).abs().max() < 0.1


@on(TWO)
def test_in_shared_memory_nothing_is_quantised() -> None:
    own = own_gradient(20_000)
    assert torch.equal(ring.allreduce(own, op=ring.Sum, compression=ring.Compression.int8), sum_over_ranks(own))


@on(TWO_OVER_TCP)
def test_ranks_that_compress_differently_are_told_both() -> None:
    kinds = [ring.Compression.int8, ring.Compression.none]
    with pytest.raises(ringcore.MismatchError, match=r"compression int8.*the compression differs"):
        ring.allreduce(torch.ones(9000), name="differs", compression=kinds[ring.rank()])


@on(TWO_OVER_TCP, TWO)
def test_optimizers_that_were_made_differently_are_told_both() -> None:
    choices, model = ring.Compression, torch.nn.Linear(512, 300)
    pairs: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"compression": "none"}, {"compression": "int8"}, "compression is none .* and int8"),
        ({"compression": choices.powersgd(2)}, {"compression": choices.powersgd(4)}, "rank=2.* and .*rank=4"),
        ({"compression": choices.powersgd(2)}, {"compression": choices.none}, "compression is PowerSGD.* and none"),
        ({"compression": choices.topk(0.1)}, {"compression": choices.topk(0.2)}, "ratio=0.1.* and .*ratio=0.2"),
        ({"op": ring.Sum}, {"op": ring.Adasum}, "op is SUM .* and ADASUM"),
        ({}, {"backward_passes_per_step": 2}, "backward_passes_per_step is 1 .* and 2"),
        ({"groups": 1}, {"groups": [[model.weight]]}, r"groups is 1 .* and \[1\]"),
    ]
    for *given, told in pairs:
        optimizer = ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), check_weights=False,
            **given[ring.rank()],
        )  # fmt: skip
        model(torch.ones(1, 512)).sum().backward()
        with pytest.raises(ringcore.MismatchError, match=rf"DistributedOptimizer with different arguments: .*{told}"):
            optimizer.step()
        optimizer.zero_grad()


@on(TWO_OVER_TCP)
@pytest.mark.parametrize("kind", ["fp16", "int8", "int4"])
def test_what_is_lost_is_added_to_the_next_gradient(kind: str, equal_on_all_ranks: Equal) -> None:
    model = torch.nn.Linear(200, 100)
    named = list(model.named_parameters())
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named, compression=getattr(ring.Compression, kind),
        error_feedback=True, check_weights=False,
    )  # fmt: skip
    start = copy.deepcopy(model.weight.detach())
    ring.broadcast_parameters(named)
    gradient = own_gradient(model.weight.numel()).view_as(model.weight)
    steps = 20
    for _ in range(steps):
        optimizer.zero_grad()
        (model.weight * gradient).sum().backward()
        optimizer.step()
    moved = start - model.weight.detach()
    lost = optimizer.state_dict()["errors"]["weight"]
    assert lost.abs().max() > 0
    # What is on the way still is all that is missing, but for float32's rounding and what hops round.
    whole = sum_over_ranks(steps * gradient) / ring.size()
    missing = sum_over_ranks(lost) / ring.size()
    hops = {"fp16": 1e-3, "int8": 1e-2, "int4": 0.2}[kind]
    assert (moved + missing - whole).abs().max() / steps < hops
    assert equal_on_all_ranks([model.weight])


@on(TWO_OVER_TCP)
def test_errors_go_with_the_state_of_the_optimizer() -> None:
    model = torch.nn.Linear(200, 100, bias=False)

    def wrapped() -> Any:
        return ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=ring.Compression.int4,
            error_feedback=True,
        )  # fmt: skip

    first = wrapped()
    ring.broadcast_parameters(model.state_dict())
    model(torch.randn(3, 200)).sum().backward()
    first.step()
    state = copy.deepcopy(first.state_dict())
    second = wrapped()
    assert not second.state_dict()["errors"]["weight"].any()
    second.load_state_dict(state)
    assert torch.equal(second.state_dict()["errors"]["weight"], state["errors"]["weight"])
    assert state["errors"]["weight"].any()
    second.load_state_dict({key: value for key, value in state.items() if key != "errors"})
    assert not second.state_dict()["errors"]["weight"].any()


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("kind", EXCHANGES)
def test_an_exchange_keeps_what_it_does_not_send(kind: str, equal_on_all_ranks: Equal) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(60, 50), torch.nn.Linear(50, 40))
    ring.broadcast_parameters(model.state_dict())
    start = copy.deepcopy(model)
    exchange = EXCHANGES[kind]()
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), compression=exchange
    )
    total = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    generator = torch.Generator().manual_seed(ring.rank() + 1)
    for _ in range(5):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            total[name] += parameter.grad
        optimizer.step()
    kept = optimizer.state_dict()["compression"]["errors"]
    assert set(kept) == {"0.weight", "1.weight"}
    for (name, parameter), before in zip(model.named_parameters(), start.parameters(), strict=True):
        lost = torch.from_numpy(kept[name]) if name in kept else torch.zeros_like(parameter)
        moved = (before - parameter).detach()
        expected = ring.allreduce(total[name] - lost)
        if kind == "powersgd" and name in kept:  # whose errors are against the average, of each rank
            expected = ring.allreduce(total[name]) - ring.allreduce(lost)
        assert torch.allclose(moved, expected, atol=2e-5)
    assert equal_on_all_ranks(model.parameters())


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("kind", EXCHANGES)
def test_of_a_step_that_is_left_out_an_exchange_keeps_nothing(kind: str, equal_on_all_ranks: Equal) -> None:
    def trained(left_out: float | None) -> tuple[torch.Tensor, Any]:
        weight = torch.zeros(50, 60, requires_grad=True)
        optimizer = ring.DistributedOptimizer(
            torch.optim.SGD([weight], lr=0.1), [("weight", weight)], compression=EXCHANGES[kind]()
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(4):
            gradient = own_gradient(weight.numel()).view_as(weight) * (step + 1)
            if step == 2:
                if left_out is None:
                    continue
                gradient[3, 4] = left_out if ring.rank() == 1 else 1.0
            optimizer.zero_grad()
            scaler.scale((weight * gradient).sum()).backward()
            scaler.step(optimizer)
            scaler.update(1024.0)
        return weight.detach(), optimizer.state_dict()["compression"]

    weight, state = trained(None)
    for left_out in (torch.inf, torch.nan):
        again, kept = trained(left_out)
        assert torch.equal(again, weight)
        assert equal_on_all_ranks([again])
        for part in kept.keys() - {"warmup_steps"}:
            assert torch.equal(torch.from_numpy(kept[part]["weight"]), torch.from_numpy(state[part]["weight"]))


@on(TWO_OVER_TCP)
@pytest.mark.parametrize(("kind", "too_large"), [("fp16", 1e30), ("int8", torch.inf)])
def test_what_is_infinite_is_no_error_to_be_kept(kind: str, too_large: float) -> None:
    weight = torch.zeros(100, 200, requires_grad=True)
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), [("weight", weight)], error_feedback=True,
        compression=getattr(ring.Compression, kind),
    )  # fmt: skip
    for step in range(2):
        gradient = own_gradient(weight.numel()).view_as(weight)
        if step == 0 and ring.rank() == 1:
            gradient[3, 4] = too_large
        optimizer.zero_grad()
        (weight * gradient).sum().backward()
        optimizer.synchronize()
        assert weight.grad is not None
        assert bool(weight.grad.isfinite().all()) == (step == 1)
    assert optimizer.state_dict()["errors"]["weight"].isfinite().all()


@on(TWO)
@pytest.mark.parametrize("name", ["powersgd", "topk", "onebit"])
def test_an_exchange_begins_with_whole_gradients(name: str) -> None:
    def wrapped(model: torch.nn.Module, steps: int) -> Any:
        return ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(),
            compression=getattr(ring.Compression, name)(warmup_steps=steps),
        )  # fmt: skip

    model = torch.nn.Linear(60, 50)
    optimizer = wrapped(model, 2)
    generator = torch.Generator().manual_seed(ring.rank() + 1)
    exact = []
    for step in range(3):
        if step == 1:  # who goes on from a checkpoint has made a part of them
            state = optimizer.state_dict()
            assert state["compression"]["warmup_steps"] == 1
            optimizer = wrapped(model, 7)
            optimizer.load_state_dict(state)
        before = model.weight.detach().clone()
        model.weight.grad = torch.randn(50, 60, generator=generator)
        mean = ring.allreduce(model.weight.grad)
        optimizer.step()
        exact.append(torch.allclose(before - model.weight.detach(), mean, atol=1e-6))
    assert exact == [True, True, False]
    with pytest.raises(ringcore.InvalidArgument, match="from 0, not -1"):
        ring.Compression.onebit(warmup_steps=-1)


@on(TWO, TWO_OVER_TCP, THREE_OVER_TCP)
@pytest.mark.parametrize("used", [0, 3, 400])
def test_blocks_that_are_zero_everywhere_are_not_sent(used: int) -> None:
    def wrapped(**options: Any) -> tuple[torch.nn.Module, Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(400, 301), torch.nn.Linear(301, 5))
        return model, ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), **options)

    whole, least = wrapped(), wrapped(compression=ring.Compression.blocks(64))
    generator = torch.Generator().manual_seed(ring.rank() + 1)
    sent = []
    for _ in range(2):
        rows = torch.randperm(400, generator=generator)[:used]
        values = torch.randn(used, 301, generator=generator)
        for model, optimizer in (whole, least):
            model[0].weight.grad = torch.zeros(400, 301)
            model[0].weight.grad[rows] = values
            model[0].weight.grad[-1, -1] = -0.0  # behind the last whole block
            model[1].bias.grad = torch.full((5,), 1.0 + ring.rank())
            ring.barrier()
            before = sent_bytes()
            optimizer.step()
            ring.barrier()  # what others have waited for has been sent
            sent.append(sent_bytes() - before)
    for one, other in zip(whole[0].parameters(), least[0].parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-6)
        if ring.size() == 2:  # whose sums have one order only
            assert torch.equal(one, other)
    # In the last step, over TCP; of all ranks, as those of a tree do not send alike.
    *_, in_all, in_blocks = (sum(ringcore.allgather_object(each, name="sent")) for each in sent)
    assert in_blocks <= in_all * (1.1 if used == 400 else 0.2)
    with pytest.raises(ringcore.InvalidArgument, match="from 1, not 0"):
        ring.Compression.blocks(0)


@on(TWO)
def test_exchanges_work_with_clipping_and_refuse_what_they_cannot_do() -> None:
    model = torch.nn.Linear(64, 64)
    ring.broadcast_parameters(model.state_dict())
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=ring.Compression.powersgd(1)
    )
    model(torch.randn(8, 64) * (ring.rank() + 1)).square().sum().backward()
    optimizer.synchronize()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert torch.equal(ring.allreduce(norm, op=ring.Max), ring.allreduce(norm, op=ring.Min))
    with pytest.raises(ringcore.InvalidArgument, match="leave out op"):
        ring.DistributedOptimizer(optimizer.__class__.__mro__[2]([torch.ones(2, requires_grad=True)], lr=1),
                                  op=ring.Sum, compression=ring.Compression.onebit())  # fmt: skip
    with pytest.raises(ringcore.InvalidArgument, match=r"call it: Compression\.onebit\(\)"):
        ring.DistributedOptimizer(
            torch.optim.SGD([torch.ones(2, requires_grad=True)]), compression=ring.Compression.onebit
        )
    with pytest.raises(ringcore.InvalidArgument, match="float32 and float64"):
        ring.DistributedOptimizer(
            torch.optim.SGD([torch.ones(2, dtype=torch.bfloat16, requires_grad=True)]),
            compression=ring.Compression.onebit(),
        )
    with pytest.raises(ringcore.InvalidArgument, match="at least 1"):
        ring.Compression.powersgd(0)
    with pytest.raises(ringcore.InvalidArgument, match=r"at most 0\.5"):
        ring.Compression.topk(0.7)


def test_powersgd_is_the_one_of_distributed_data_parallel(tmp_path: Path) -> None:
    """In processes of their own: what gloo leaves behind would be in the way of other tests."""
    script = Path(__file__).with_name("script_powersgd.py")
    ranks = [
        sys.executable,
        "-m",
        "ringcore",
        "run",
        "-np",
        "2",
        sys.executable,
        os.fspath(script),
        os.fspath(tmp_path),
    ]
    done = subprocess.run(ranks, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal in 12 steps") == 2


@on(TWO)
def test_errors_of_nothing_are_not_kept() -> None:
    model = torch.nn.Linear(3, 2)
    with pytest.raises(ringcore.InvalidArgument, match="pass a compression, or leave it out"):
        ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), error_feedback=True)


@on(TWO)
def test_its_name_does_as_well(equal_on_all_ranks: Equal) -> None:
    model = torch.nn.Linear(3, 2)
    named = list(model.named_parameters())
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named, compression="bf16")
    ring.broadcast_parameters(named)
    model(torch.full((1, 3), 1 + 2**-9)).sum().backward()
    optimizer.step()
    assert equal_on_all_ranks([model.weight])
    assert model.weight.grad.unique().tolist() == [1.0]  # what bfloat16 makes of 1 + 2^-9


@on(TWO)
def test_exchanges_refuse_gradients_of_bfloat16() -> None:
    """Parameters may get another dtype when an optimizer has them."""
    model = torch.nn.Linear(40, 50)
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=ring.Compression.onebit(),
        check_weights=False,
    )  # fmt: skip
    model.to(torch.bfloat16)
    model(torch.ones(3, 40, dtype=torch.bfloat16)).sum().backward()
    with pytest.raises(ringcore.InvalidArgument, match="'weight' is of bfloat16, and OneBit takes float32"):
        optimizer.step()
