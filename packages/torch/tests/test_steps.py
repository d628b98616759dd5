"""What may come between backward and step: gradients that are missing, replaced or skipped, models that change."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import ringcore
import ringcore_torch as ring
import torch
from ringcore_torch.buckets import PackedBucket
from support.on_ranks import THREE_OVER_TCP, TWO, TWO_ON_GPUS, TWO_OVER_TCP, on

# Columns of a matrix that is large enough for a bucket in registered memory; those of 2 are packed by the engine.
WIDE = 4000


def refused(told: str) -> pytest.RaisesExc[ringcore.InvalidArgument]:
    return pytest.raises(ringcore.InvalidArgument, match=told)


def wrapped(model: torch.nn.Module, rate: float = 0.1, **options: Any) -> Any:
    return ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=rate), model.named_parameters(), **options)


@on(TWO, TWO_OVER_TCP, TWO_ON_GPUS)
@pytest.mark.parametrize("width", [2, WIDE])
def test_a_step_that_is_skipped_and_closures(width: int, equal_on_all_ranks: Callable[..., bool]) -> None:
    torch.manual_seed(0)
    inputs, model = torch.full((1, 3), 1.0 + ring.rank()), torch.nn.Linear(3, width)
    optimizer = wrapped(model, 0.01)
    model(inputs).sum().backward()
    optimizer.synchronize()  # ... and the step is skipped
    model.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()
    assert equal_on_all_ranks(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(inputs).sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert equal_on_all_ranks(model.parameters())


@on(TWO)
def test_small_gradients_are_looked_at_as_rarely_as_tells_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(2)) for _ in range(9))
    optimizer, looks, version = wrapped(model), [], PackedBucket.version
    monkeypatch.setattr(PackedBucket, "version", lambda bucket: looks.append(bucket) or version(bucket))
    torch.stack([parameter.sum() for parameter in model]).sum().backward()
    optimizer.step()
    assert len(looks) == 2, "when backward ends, and when the average begins that step waits for"


@on(TWO, TWO_OVER_TCP, TWO_ON_GPUS)
def test_gradients_that_were_replaced_or_only_added_up(equal_on_all_ranks: Callable[..., bool]) -> None:
    torch.manual_seed(0)
    inputs, model = torch.full((1, 3), 1.0 + ring.rank()), torch.nn.Linear(3, WIDE)
    optimizer = wrapped(model, 0.01)
    model(inputs).sum().backward()
    model.weight.grad = model.weight.grad * 0.5
    with refused("was changed while its average was on the way"):
        optimizer.step()
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()
    assert equal_on_all_ranks(model.parameters())
    optimizer.zero_grad()
    reducer = optimizer._ring
    with reducer.no_sync():
        with reducer.no_sync():
            pass
        model(inputs).sum().backward()
    assert model.weight.grad[0].tolist() == inputs[0].tolist()
    model(inputs).sum().backward()
    optimizer.step()
    assert model.weight.grad.unique().tolist() == [1.0 + ring.size()]
    with refused("wrap it once"):
        ring.DistributedOptimizer(optimizer, model.named_parameters())


@on(TWO)
@pytest.mark.parametrize("width", [2, WIDE])
@pytest.mark.parametrize("overlaps", [False, True])
def test_a_gradient_that_is_changed_before_the_step_is_refused_whenever_its_average_begins(
    width: int, overlaps: bool, equal_on_all_ranks: Callable[..., bool]
) -> None:
    torch.manual_seed(0)
    inputs, layers = torch.full((1, 3), 1.0 + ring.rank()), torch.nn.ModuleList(torch.nn.Linear(3, width) for _ in "ab")
    optimizer = wrapped(layers, 0.01)
    optimizer._ring.overlaps = overlaps

    def replace(parameter: torch.Tensor) -> None:
        parameter.grad = parameter.grad * 0.5

    changes: list[Callable[[torch.Tensor], Any]] = [lambda parameter: parameter.grad.mul_(0.5), replace]
    for change in changes:
        for parameter in layers.parameters():
            sum(layer(inputs).sum() for layer in layers).backward()
            change(parameter)
            with refused("was changed while its average was on the way"):
                optimizer.step()
            optimizer.zero_grad()
    # A second loss brings the gradients of other parameters, and is no change.
    for layer in reversed(layers):
        layer(inputs).sum().backward()
    optimizer.step()
    assert equal_on_all_ranks(layers.parameters())
    sum(layer(inputs).sum() for layer in layers).backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(layers.parameters(), 0.1)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert equal_on_all_ranks(layers.parameters())


@on(TWO, TWO_ON_GPUS)
@pytest.mark.parametrize("width", [2, WIDE])
def test_a_layer_that_a_rank_does_not_use_counts_as_zero_there(width: int) -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(3, width, bias=False) for _ in range(2))
    optimizer = wrapped(layers, 0.0)
    for step in range(3):
        optimizer.zero_grad(set_to_none=step == 1)
        used = layers if step == 0 or ring.rank() == 0 else layers[:1]
        sum(layer(torch.ones(1, 3)).sum() for layer in used).backward()
        if step == 2 and ring.rank() > 0:
            layers[1].weight.grad = None
        optimizer.step()
        assert layers[1].weight.grad.unique().tolist() == [1.0 if step == 0 else 1.0 / ring.size()]


@on(TWO, TWO_ON_GPUS)
@pytest.mark.parametrize("rows", [2, WIDE])
def test_an_average_in_two_steps_is_the_average(rows: int) -> None:
    average = sum(range(1, ring.size() + 1)) / ring.size()
    dense, sparse = torch.nn.Linear(rows, 3, bias=False), torch.nn.Embedding(rows, 3, sparse=True)
    optimizer = wrapped(torch.nn.ModuleList([dense, sparse]), gradient_predivide_factor=4.0)
    scale = ring.rank() + 1.0
    (scale * (dense(torch.ones(1, rows)).sum() + sparse(torch.tensor([1])).sum())).backward()
    optimizer.step()
    assert dense.weight.grad.unique().tolist() == [average]
    assert sparse.weight.grad.coalesce().values().tolist() == [[average] * 3]


@on(TWO, TWO_ON_GPUS)
def test_groups_by_number_and_by_lists_train_alike() -> None:
    weights = []
    for kind, buckets in {"none": 1, "number": 2, "lists": 3}.items():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3), torch.nn.Linear(3, 1)).double()
        parameters = list(model.parameters())
        optimizer = wrapped(model, groups={"none": None, "number": 2, "lists": [parameters[:3], [parameters[5]]]}[kind])
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((2, 4), 1.0 + ring.rank() + step, dtype=torch.float64)).sum().backward()
            optimizer.step()
        weights.append(torch.cat([parameter.detach().flatten() for parameter in parameters]))
        assert torch.equal(weights[0], weights[-1]), kind
        assert len(optimizer._ring.buckets) == buckets
    with refused("at least 1"):
        wrapped(model, groups=0)
    with refused("does not have"):
        wrapped(model, groups=[[torch.nn.Parameter(torch.ones(1))]])


@on(TWO, TWO_OVER_TCP, TWO_ON_GPUS)
def test_mistakes_are_explained_and_training_goes_on(equal_on_all_ranks: Callable[..., bool]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, WIDE)
    optimizer = wrapped(model)
    model(torch.ones(1, 3)).sum().backward()
    with refused("backward_passes_per_step = 1"):
        model(torch.ones(1, 3)).sum().backward()
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with refused(r"call optimizer.synchronize\(\) before clipping"):
        optimizer.step()
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    other = torch.nn.Linear(3, WIDE)
    second = wrapped(other)
    for turn in range(4):
        net, its = (model, optimizer) if turn % 2 else (other, second)
        its.zero_grad()
        net(torch.full((1, 3), float(ring.rank()))).sum().backward()
        its.step()
    assert equal_on_all_ranks([*model.parameters(), *other.parameters()])


@on(TWO, TWO_OVER_TCP, TWO_ON_GPUS)
@pytest.mark.parametrize("op", [ring.Sum, ring.Adasum])
def test_complex_parameters_are_refused_with_what_to_do(op: Any) -> None:
    waves = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with refused("'waves' is a parameter of torch.complex64.*make torch.view_as_real") as caught:
        ring.DistributedOptimizer(torch.optim.SGD([waves], lr=1.0), [("waves", waves)], op=op)
    assert "make torch.view_as_real(parameter) the parameter" in str(caught.value)


@on(TWO)
def test_models_that_are_copied_moved_or_wrapped_again(equal_on_all_ranks: Callable[..., bool]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, WIDE)
    optimizer = wrapped(model)
    inputs = torch.full((1, 3), float(ring.rank()))
    own = [float(ring.rank())] * 3
    model(inputs).sum().backward()
    optimizer.step()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin.zero_grad()
        twin(inputs).sum().backward()  # on its own: nothing is averaged
        assert twin.weight.grad[0].tolist() == own
    with refused("this is a copy of a DistributedOptimizer"):
        copy.deepcopy(optimizer).step()
    model.double()
    optimizer.zero_grad()
    with refused("'weight' was a parameter of torch.float32 on the CPU when its optimizer was wrapped"):
        model(inputs.double()).sum().backward()
    model.float()
    again = wrapped(model)
    for _ in range(2):
        again.zero_grad()
        model(inputs).sum().backward()
        again.step()
    with refused("wrapped again by a later DistributedOptimizer"):
        optimizer.step()
    assert equal_on_all_ranks(model.parameters())
    ring.shutdown()
    ring.init()
    last = wrapped(model)
    model(inputs).sum().backward()
    last.step()
    assert equal_on_all_ranks(model.parameters())
    del again, last
    model.zero_grad()
    model(inputs).sum().backward()  # nobody is left who averages
    assert model.weight.grad[0].tolist() == own


@on(TWO)
def test_the_default_device_is_the_users_alone(equal_on_all_ranks: Callable[..., bool]) -> None:
    torch.manual_seed(0)
    rank, size = ring.rank(), ring.size()
    layers = torch.nn.Embedding(WIDE, 4, sparse=True), torch.nn.Linear(4, WIDE), torch.nn.Linear(WIDE, 1)
    model = torch.nn.Sequential(*layers)
    words, rows, none = torch.tensor([[rank]]), torch.ones(size, 2), torch.ones(0, 2)
    with torch.device("meta"):
        optimizer = wrapped(model)
        for step in range(2):
            optimizer.zero_grad()
            if step == 0 or rank == 0:  # then the others have no gradient
                model(words).sum().backward()
            optimizer.step()
        ring.broadcast_optimizer_state(optimizer)
        received, counts = ring.alltoall(rows, [1] * size)
        gathered = ring.allgather(none)
    assert equal_on_all_ranks(model.parameters())
    assert {str(tensor.device) for tensor in (received, counts, gathered)} == {"cpu"}


def first_step(seed: int, **options: Any) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = wrapped(model, **options)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model


@on(TWO, THREE_OVER_TCP)
def test_a_forgotten_broadcast_is_told_at_the_first_step() -> None:
    with pytest.raises(ringcore.MismatchError, match="different weights at the first step: 'weight', 'bias'"):
        first_step(ring.rank())
    first_step(ring.rank(), check_weights=False)
    first_step(0)


@on(TWO, THREE_OVER_TCP)
def test_an_optimizer_broadcasts_the_parameters_when_asked_to(equal_on_all_ranks: Callable[..., bool]) -> None:
    assert equal_on_all_ranks(first_step(ring.rank(), broadcast=True).parameters())


@on(TWO)
def test_a_rank_that_has_joined_has_the_weights_of_the_others() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = wrapped(model)
    if ring.rank() == 0:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    ring.join()


@on(TWO)
def test_an_optimizer_of_a_process_set_is_made_on_all_ranks_and_steps_on_its_members() -> None:
    first = ring.add_process_set([0])
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = ring.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), process_set=first)
    if first.included():
        weight.sum().backward()
        optimizer.step()
        assert weight.tolist() == [-1.0, -1.0]
    ring.barrier()
    ring.remove_process_set(first)
