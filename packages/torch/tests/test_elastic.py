"""Elastic training of PyTorch: two ranks go on when the third is killed, and take another one in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import ringcore
import ringcore_torch as ring
import torch
from ringcore_torch import elastic
from support import ranks
from support.elastic import AT_ONCE
from support.on_ranks import TWO, on
from support.processes import Ringrun

SCRIPT = """
import json, os, signal
import ringcore
import torch
import ringcore_torch as ring
from ringcore_torch import elastic

def count_touched():
    context = ringcore.job.state.context()
    return len(context.touched_for_state) + len(context.touched_for_step)

started_as = int(os.environ["RANK"])
is_new = os.path.exists("killed")
ring.init()
torch.set_default_device(os.environ["DEVICE"])
torch.manual_seed(os.getpid())  # all ranks take the weights of rank 0, whenever they come
model = torch.nn.Linear(4, 2)
model.register_buffer("own", torch.zeros(()))  # As what batch norm has seen, on each rank something else.
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = ring.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
touched = count_touched()

@elastic.run
def train(state):
    engine = ringcore.job.state.context().began  # Another one after each meeting of all ranks.
    begun = {"pid": os.getpid(), "engine": engine, "size": ring.size(), "step": state.step, "weights": weights()}
    begun["rank"], begun["own"] = ring.rank(), model.own.item()
    begun["touched"] = touched, count_touched()
    tell("begin", begun)
    model.own.fill_(1 + ring.rank())
    last = state.step + 3 if os.path.exists("killed") and ring.size() == 3 else None
    while state.step != last:
        if started_as == 1 and not is_new and state.step == 5:
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.full((1, 4), 1.0 + ring.rank())).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
    tell("end", {**begun, "step": state.step, "weights": weights(), "momentum": momentum()})

def weights():
    return model.weight.flatten().tolist()

def momentum():
    return [s["momentum_buffer"].flatten().tolist() for s in optimizer.state_dict()["state"].values()]

def tell(event, line):
    with open(event, "a") as file:
        file.write(json.dumps(line) + "\\n")

train(elastic.TorchState(model, optimizer, sampler=elastic.ElasticSampler(range(6)), step=0))
"""


AVERAGES = "optimizer = ring.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())"
MEETS = "optimizer = ring.LocalSGD(optimizer, model.named_parameters(), every=1)"
MEETS_BY_WAYS = MEETS.replace("every=1", 'every=1, compression="bf16"')
# Each rank takes the outer steps for itself: weights stay equal where a newcomer has the outer momentum of the others.
STEPS_OUTER = """outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
optimizer = ring.DiLoCo(optimizer, outer, model.named_parameters(), every=1)"""


@pytest.mark.parametrize(
    "wrapped",
    [AVERAGES, MEETS, *(pytest.param(way, marks=pytest.mark.long) for way in (MEETS_BY_WAYS, STEPS_OUTER))],
    ids=["averaged", "local", "compressed", "diloco"],
)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_two_ranks_go_on_without_the_third_and_take_another_in(wrapped: str, device: str, tmp_path: Path) -> None:
    if device == "gpu" and "RINGCORE_TEST_GPUS" not in os.environ:
        pytest.skip("there is no GPU here; nox -s gpu runs this where there is one")
    assert AVERAGES in SCRIPT
    (tmp_path / "train.py").write_text(SCRIPT.replace(AVERAGES, wrapped))
    ringrun = Ringrun(tmp_path)
    ringrun.environ.update(OMP_NUM_THREADS="1", RINGCORE_TIMEOUT_S="60", DEVICE="cuda" if device == "gpu" else "cpu")
    done = ringrun("-np", "3", "--min-np", "2", *AT_ONCE, "train.py")
    assert done.returncode == 0, done.stderr

    def told(event: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in (tmp_path / event).read_text().splitlines()]

    begun, ended = told("begin"), told("end")
    assert [line["size"] for line in begun] == [3, 3, 3, 2, 2, 3, 3, 3]
    assert {line["step"] for line in begun[3:5]} == {5}
    assert {line["step"] for line in ended} == {begun[5]["step"] + 3}
    assert {line["pid"] for line in begun[3:5]} < {line["pid"] for line in begun[:3]}
    # Whoever comes gets the state of rank 0. The others keep theirs, as long as they have not gone back to a commit.
    assert {(line["rank"], line["own"]) for line in begun[3:5]} == {(0, 1), (1, 1)}
    assert {(line["rank"], line["own"]) for line in begun[5:]} == {(0, 1), (1, 2), (2, 1)}
    # Whoever comes joins the others: those keep their connections.
    survivors = {line["pid"] for line in begun[3:5]}
    engines = {(line["pid"], line["engine"]) for line in begun if line["pid"] in survivors}
    assert len(engines) == 2
    for lines in (begun[:3], begun[3:5], begun[5:], ended):
        assert all(line["weights"] == lines[0]["weights"] for line in lines), "all have those of rank 0"
    if wrapped == AVERAGES:  # between two meetings each rank has gradients of its own
        assert all(line["momentum"] == ended[0]["momentum"] for line in ended)
        # The memory of a newcomer's state and first step is free before that begins, and the others touch none.
        assert {(line["touched"][0] > 0, line["touched"][1]) for line in begun} == {(False, 0), (True, 0)}
    assert len({line["pid"] for line in ended}) == 3 and len({line["pid"] for line in begun}) == 4


def begins_with_another_model_on_rank_1() -> str:
    import ringcore
    import ringcore_torch as ring
    import torch
    from ringcore_torch import elastic

    ring.init()
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 3 + ring.rank()))
    try:
        elastic.run(lambda _: None)(elastic.TorchState(model, step=0))
    except ringcore.RingcoreError as error:
        return str(error)
    return ""


def test_the_first_parameter_that_differs_is_named(tmp_path: Path) -> None:
    outcomes = ranks.run(begins_with_another_model_on_rank_1, 2, tmp_path)
    says = "the state of rank 1 is not that of rank 0: model: 1.weight is torch.float32 of shape (4, 2), and "
    assert says + "torch.float32 of shape (3, 2) there" in outcomes[1]
    assert "rank 1" in outcomes[0], "for the others it is a lost rank"


@pytest.mark.parametrize(
    "state",
    [pytest.param("elastic.TorchState(model, step=0)", marks=pytest.mark.long), "elastic.TorchState(step=0)"],
)
def test_who_comes_is_compared_with_rank_0(state: str, tmp_path: Path) -> None:
    text = SCRIPT.replace("os.getpid())  # all", "3 + is_new)  # all")
    head, _, tail = text.rpartition("elastic.TorchState(model")
    (tmp_path / "train.py").write_text(f"{head}{state})\n")
    assert tail and "3 + is_new" in text
    ringrun = Ringrun(tmp_path)
    ringrun.environ.update(OMP_NUM_THREADS="1", RINGCORE_TIMEOUT_S="60", DEVICE="cpu")
    done = ringrun("-np", "3", "--min-np", "2", "--reset-limit", "2", *AT_ONCE, "train.py")
    has_its_weights = "model" in state
    assert (done.returncode == 0) == has_its_weights, done.stderr
    says = "the ranks have different weights at the first step: "
    which = "(the first is one on ranks [0, 1] and another on ranks [2])"
    assert (says in done.stderr and which in done.stderr) != has_its_weights, done.stderr


def test_horovods_name_of_what_ends_a_collective_is_there() -> None:
    assert elastic.HorovodInternalError is ringcore.elastic.HorovodInternalError is ringcore.RingcoreError


DIES_IN_SYNC = """
if is_new and not os.path.exists("died"):
    def die(_):
        limit = time.monotonic() + 60
        while not os.path.exists("stepping"):
            assert time.monotonic() < limit, "nobody has begun a step"
            time.sleep(0.01)
        open("died", "w").close()
        os._exit(3)
    elastic.TorchState.sync = die
"""
STEPS = "        optimizer.zero_grad()\n"
TELLS = '        if ring.size() == 3 and os.path.exists("killed"):\n            open("stepping", "w").close()\n'


@pytest.mark.long
def test_who_trains_on_goes_back_too_when_the_one_that_gets_the_state_dies(tmp_path: Path) -> None:
    # Where steps are left out, nobody may leave one out on its own while others go back to a commit.
    script = SCRIPT.replace("import json, os,", "import json, os, time,").replace(STEPS, TELLS + STEPS)
    script = script.replace("\n@elastic.run", f"{DIES_IN_SYNC}\n@elastic.run")
    script = script.replace(AVERAGES, AVERAGES[:-1] + ', on_lost_rank="skip")')
    assert TELLS in script and DIES_IN_SYNC in script and '"skip"' in script
    (tmp_path / "train.py").write_text(script)
    ringrun = Ringrun(tmp_path)
    ringrun.environ.update(OMP_NUM_THREADS="1", RINGCORE_TIMEOUT_S="60", DEVICE="cpu")
    done = ringrun("-np", "3", "--min-np", "2", *AT_ONCE, "train.py")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "died").exists()
    ended = [json.loads(line) for line in (tmp_path / "end").read_text().splitlines()]
    assert len(ended) == 3 and all(line["weights"] == ended[0]["weights"] for line in ended)
    assert all(line["momentum"] == ended[0]["momentum"] for line in ended)


@on(TWO)
def test_what_has_come_is_kept_whatever_becomes_of_it() -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    if ring.rank() == 0:  # The other one has no state yet.
        step(model, optimizer)
    state = elastic.TorchState(model, optimizer, step=ring.rank())
    state.sync()
    come = [value.clone() for value in values(model, optimizer)]
    assert len(come) == 2 + 2 * 3 and state.step == 0
    step(model, optimizer)
    assert not any(torch.equal(*pair) for pair in zip(come, values(model, optimizer), strict=True))
    state.restore()
    assert all(torch.equal(*pair) for pair in zip(come, values(model, optimizer), strict=True))


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """On the same data on all ranks."""
    optimizer.zero_grad()
    model(torch.arange(4.0)).sum().backward()
    optimizer.step()


def values(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What training changes."""
    kept = optimizer.state_dict()["state"].values()
    return [*model.state_dict().values(), *(value for of_one in kept for value in of_one.values())]
