"""Virtual ranks: losses and weights are those of any other number of ranks, bit by bit, and of ranks that are lost."""

from __future__ import annotations

import functools
import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ringcore_torch as ring
import torch
from ringcore import InvalidArgument
from support import ranks
from support.processes import Ringrun
from support.rank import caught

VIRTUAL, STEPS = 6, 4


def trains(virtual_ranks: int, steps: int, victim: int, moment: str) -> dict:
    """Returns the losses, the weights' bits and how many ranks each step had; a victim dies in the third step."""
    import hashlib
    import os
    import signal

    import ringcore_torch as ring
    import torch
    from ringcore_torch import virtual as module

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    gather = module.allgather

    def gather_one_piece(*args: object, **options: object) -> torch.Tensor:
        module.allgather = die
        return gather(*args, **options)

    ring.init()
    place = ring.rank()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(9, 300), torch.nn.Dropout(0.3), torch.nn.Linear(300, 1).double(), torch.nn.Linear(2, 2)]
    model = torch.nn.Sequential(*layers)  # of two dtypes; nothing uses the last one
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    virtual = ring.VirtualRanks(virtual_ranks, model)
    module._PIECE_ELEMENTS = 1000  # several to a group
    losses, sizes, numbers = [], [], []
    for step in range(steps):
        dies = place == victim and step == 2
        if dies and moment == "gather":
            module.allgather = gather_one_piece
        for number in virtual.deal(step):
            numbers.append((step, number))
            if dies and moment == "backward":
                die()
            hidden = layers[1](layers[0](torch.randn(5, 9)))
            loss = (layers[2](hidden.double()) - 1.0).square().mean()
            loss.backward()
            virtual.note_loss(loss)
        assert layers[3].weight.grad is None
        optimizer.step()
        losses.append(virtual.loss.item().hex())
        sizes.append(ring.size())
    ring.shutdown()
    bits = hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())).hexdigest()
    return {"losses": losses, "bits": bits, "sizes": sizes, "numbers": numbers}


Alone = Callable[[int], dict[str, Any]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """What one rank comes to."""

    @functools.cache
    def trained(virtual_ranks: int) -> dict[str, Any]:
        (result,) = ranks.run(trains, 1, tmp_path_factory.mktemp("alone"), virtual_ranks, STEPS, -1, "")
        assert len(set(result["losses"])) == STEPS
        found: dict[str, Any] = result
        return found

    return trained


# In each run three ranks, of which one is lost, do what one does.
@pytest.mark.long
@pytest.mark.parametrize(("size", "virtual_ranks"), [(3, 6), (2, 6), (3, 2), (4, 6)])
def test_the_result_does_not_depend_on_the_number_of_ranks(
    tmp_path: Path, alone: Alone, size: int, virtual_ranks: int
) -> None:
    results = ranks.run(trains, size, tmp_path, virtual_ranks, STEPS, -1, "")
    expected = alone(virtual_ranks)
    for result in results:
        assert (result["losses"], result["bits"]) == (expected["losses"], expected["bits"])
        assert result["sizes"] == [size] * STEPS
    numbers = sorted(itertools.chain.from_iterable(result["numbers"] for result in results))
    assert numbers == [[step, number] for step in range(STEPS) for number in range(virtual_ranks)], "each one once"


@pytest.mark.parametrize("moment", ["backward", pytest.param("gather", marks=pytest.mark.long)])
def test_nor_on_a_rank_that_is_lost(tmp_path: Path, alone: Alone, moment: str) -> None:
    env = {"RINGCORE_ELASTIC": "1"}
    with ranks.started(trains, 3, tmp_path, VIRTUAL, STEPS, 1, moment, env=env) as job:
        outcomes = job.wait()
    assert [outcome.exit_code for outcome in outcomes] == [0, -signal.SIGKILL, 0], outcomes[0].stderr
    for outcome in (outcomes[0], outcomes[2]):
        expected = alone(VIRTUAL)
        assert (outcome.result["losses"], outcome.result["bits"]) == (expected["losses"], expected["bits"])
        assert outcome.result["sizes"] == [3, 3, 2, 2]
    numbers = sorted(outcomes[0].result["numbers"] + outcomes[2].result["numbers"])
    assert numbers[-2 * VIRTUAL :] == [[step, number] for step in (2, 3) for number in range(VIRTUAL)]


_JOINED = """
import hashlib, os, signal
import ringcore_torch as ring
import torch
from ringcore_torch import elastic

is_new = os.path.exists("killed")
ring.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(9, 30), torch.nn.Dropout(0.3), torch.nn.Linear(30, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
virtual = ring.VirtualRanks(6, model)

@elastic.run
def train(state):
    while state.step < least or ring.size() < ranks:
        for number in virtual.deal(state.step):
            if os.environ["RANK"] == "1" and not is_new and state.step == 3:
                open("killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.randn(5, 9)).square().mean().backward()
        optimizer.step()
        bits = b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())
        with open(f"bits.{os.getpid()}", "a") as file:
            file.write(f"{state.step} {ring.size()} {hashlib.sha256(bits).hexdigest()}\\n")
        state.step += 1
        state.commit()

train(elastic.TorchState(model, optimizer, step=0))
"""


def _bits(directory: Path) -> dict[int, set[str]]:
    lines = [line.split() for path in directory.glob("bits.*") for line in path.read_text().splitlines()]
    return {int(step): {bits for number, _, bits in lines if number == step} for step, _, _ in lines}


@pytest.mark.long
def test_nor_on_who_comes_and_goes(tmp_path: Path) -> None:
    changes, alone = tmp_path / "changes", tmp_path / "alone"
    for directory in (changes, alone):
        directory.mkdir()
    (changes / "train.py").write_text(f"ranks, least = 3, 6\n{_JOINED}")
    job = Ringrun(changes)
    job.environ["OMP_NUM_THREADS"] = "1"
    done = job(
        "-np", "3", "--min-np", "2", "--start-timeout", "300", "--blacklist-cooldown-range", "0.01", "0.01", "train.py"
    )
    assert done.returncode == 0, done.stderr
    found = _bits(changes)
    sizes = {line.split()[1] for path in changes.glob("bits.*") for line in path.read_text().splitlines()}
    assert sizes == {"2", "3"} and (changes / "killed").exists()
    (alone / "train.py").write_text(f"ranks, least = 1, {len(found)}\n{_JOINED}")
    other = Ringrun(alone)
    other.environ["OMP_NUM_THREADS"] = "1"
    done = other("-np", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert found == _bits(alone)


def makes_mistakes() -> dict:
    """Returns the error of each mistake, and what the ranks have after a step without one."""
    import ringcore_torch as ring
    import torch

    ring.init()
    rank = ring.rank()
    model = torch.nn.Linear(3, 2)
    ring.broadcast_parameters(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(mistake: str, virtual: ring.VirtualRanks, number: int, steps: bool = True) -> None:
        for _ in virtual.deal(number):
            if mistake == "inside":
                optimizer.step()
            if mistake != "no backward" or rank == 0:
                model(torch.randn(4, 3)).square().mean().backward()
            if mistake == "all leave" or (mistake == "one leaves" and rank == 1):
                break
        if steps:
            optimizer.step()

    def leaves_then_deals(virtual: ring.VirtualRanks) -> None:
        step("all leave", virtual, 6, steps=False)
        step("", virtual, 7)

    def alike(virtual: ring.VirtualRanks) -> list[list[float]]:
        """Also a step that comes again: a job has gone back to a commit."""
        step("all leave", virtual, 9, steps=False)
        step("", virtual, 8)
        return [each.tolist() for each in ring.allgather(model.weight[None].detach())]

    found = {}
    for mistake in ("all leave", "one leaves", "no backward", "inside"):
        virtual = ring.VirtualRanks(4, model)
        found[mistake] = caught(step, mistake, virtual, 5)["message"]
        rows = alike(virtual)
        assert rows[0] == rows[1], mistake
    found["deals again"] = caught(leaves_then_deals, ring.VirtualRanks(4, model))["message"]
    found["steps"] = caught(step, "", ring.VirtualRanks(4, model), (3 << 24) + rank)["message"]
    found["count"] = caught(step, "", ring.VirtualRanks(4 + rank, model), 0)["message"]
    found["seed"] = caught(step, "", ring.VirtualRanks(4, model, seed=rank), 0)["message"]
    optimizer.step()  # nothing is under way
    ring.shutdown()
    return found


def test_mistakes_are_told_on_every_rank(tmp_path: Path) -> None:
    first, second = ranks.run(makes_mistakes, 2, tmp_path)
    for mistake, number in (("all leave", 5), ("inside", 5), ("deals again", 6)):
        for found in (first, second):
            assert f"the loop over deal({number}) was left before its end" in found[mistake], found
            assert "Remedy: let the loop come to its end" in found[mistake]
    assert "optimizer.step()" in first["inside"] and "deal(7) begins" in first["deals again"]
    assert "the loop over deal(5) was left" in second["one leaves"]
    assert "rank 1 refused to go on: the loop over deal(5) was left" in first["one leaves"]
    assert "micro-batch 2 of deal(5) has left no gradient" in second["no backward"]
    assert "rank 1 refused to go on: micro-batch 2 of deal(5)" in first["no backward"]
    for found in (first, second):
        assert "50331648 on rank 0, 50331649 on rank 1" in found["steps"]
        assert "VirtualRanks with different arguments: count is 4 on ranks [0] and 5 on ranks [1]" in found["count"]
        assert "seed is 0 on ranks [0] and 1 on ranks [1]" in found["seed"]


def test_what_has_no_meaning_is_refused() -> None:
    ring.init()
    with pytest.raises(InvalidArgument, match=r"'1' \(BatchNorm1d\) keeps running statistics"):
        ring.VirtualRanks(2, torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    model = torch.nn.Linear(2, 2)
    with pytest.raises(InvalidArgument, match="at least one virtual rank, not 0"):
        ring.VirtualRanks(0, model)
    virtual = ring.VirtualRanks(2, model)
    for _ in virtual.deal(0):
        model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None
    with pytest.raises(InvalidArgument, match="call note_loss"):
        _ = virtual.loss
    ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InvalidArgument, match="a later DistributedOptimizer"):
        next(virtual.deal(1))
    for compression in ("none", ring.Compression.topk(0.1)):
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapped = ring.DistributedOptimizer(plain, model.named_parameters(), compression=compression)
        ring.VirtualRanks(2, model)
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(InvalidArgument, match=r"'weight' .* given to VirtualRanks .* a plain optimizer"):
            wrapped.step()
    ring.shutdown()
