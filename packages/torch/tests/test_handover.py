"""Elastic training of PyTorch: several ranks send their shares of a state to those that come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.elastic import AT_ONCE
from support.processes import Ringrun

# Of one process that has come and dies of itself, and of one that sends to it.
TAKER_DIES = """
if life == 1:
    handover.Handover._wait_for = lambda *_: os._exit(3)
"""
GIVER_DIES = """
if (place, life) == (2, 0):
    def die(*_):
        os._exit(3)
    handover.Handover._wait_for = die
"""
# The first of two that come is one of three ranks then, and hears of the other when that has asked it, too.
HEARS = """
from ringcore.job import members
pack = members.pack_arrivals
def pack_both():
    if life and ring.size() == 3:
        wait_for(ringcore.job.state.context().runtime.arrivals)
    return pack()
members.pack_arrivals = pack_both
"""
SCRIPT = """
import json, os, signal, time
import ringcore
import torch
import ringcore_torch as ring
from ringcore.job import handover
from ringcore_torch import elastic

BROADCAST = handover._BROADCAST
place = int(os.environ["RANK"])
life = len([name for name in os.listdir() if name.startswith(f"life.{place}.")])
open(f"life.{place}.{life}", "w").close()
submit = handover.Handover._submit

def tell(event, line):
    with open(event, "a") as file:
        file.write(json.dumps(line) + "\\n")

def submit_and_tell(collective, name, source, *others):
    if collective == BROADCAST and source.shape[0] >= 1000:
        tell("sent", {"place": place, "life": life, "name": name, "extent": source.shape[0], "root": others[-1]})
    return submit(collective, name, source, *others)

handover.Handover._submit = staticmethod(submit_and_tell)
HOW
ring.init()
torch.manual_seed(os.getpid())
model = torch.nn.Linear(512, 512)
model.register_buffer("own", torch.zeros(1 << 17))  # as a queue of samples that each rank has seen
torch.manual_seed(1)
model.register_buffer("read", torch.rand(1 << 17))  # from a file that each process has read
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = ring.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

def wait_for(condition):
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, "the others have not come"
        time.sleep(0.01)

def weights():
    return [value.double().sum().item() for value in [*model.parameters(), model.read]]

def momentum():
    return [slots["momentum_buffer"].double().sum().item() for slots in optimizer.state_dict()["state"].values()]

@elastic.run
def train(state):
    tell("begin", {"place": place, "life": life, "rank": ring.rank(), "size": ring.size(), "step": state.step,
                   "own": model.own[-1].item(), "text": state.text})
    model.own.fill_(10 + ring.rank())
    last = state.step + 3 if os.path.exists("killed") and ring.size() == 4 else None
    while state.step != last:
        if life == 0 and place in DIE and state.step == 5:
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if ring.size() == 4 - len(DIE) and WAITS:  # until all have come
            wait_for(lambda: len(ringcore.job.state.context().runtime.arrivals()) == len(DIE))
        optimizer.zero_grad()
        model(torch.full((1, 512), 1.0 + ring.rank())).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
    tell("end", {"place": place, "life": life, "step": state.step, "weights": weights(), "momentum": momentum()})

train(elastic.TorchState(model, optimizer, sampler=elastic.ElasticSampler(range(6)), step=0, text="of %d" % place))
"""
LARGE = ["weight", "own", "read"]


def run(folder: Path, die: list[int], *, how: str = "", waits: bool = False) -> dict[str, list[dict[str, Any]]]:
    script = SCRIPT.replace("HOW", how).replace("DIE", str(die)).replace("WAITS", str(waits))
    (folder / "train.py").write_text(script)
    ringrun = Ringrun(folder)
    # Each rank is a host of its own.
    ringrun.environ.update(OMP_NUM_THREADS="1", RINGCORE_TIMEOUT_S="60", RINGCORE_TRANSPORT="tcp")
    done = ringrun("-np", "4", "--min-np", "1", *AT_ONCE, "train.py")
    assert done.returncode == 0, done.stderr
    told = {}
    for event in ("begin", "sent", "end"):
        told[event] = [json.loads(line) for line in (folder / event).read_text().splitlines()]
    ended = told["end"]
    assert len(ended) == 4
    for what in ("step", "weights", "momentum"):
        assert all(line[what] == ended[0][what] for line in ended), f"all have the same {what}"
    return told


def test_each_rank_sends_its_share_and_nobody_what_is_there_already(tmp_path: Path) -> None:
    told = run(tmp_path, [1])
    comes = [line for line in told["begin"] if line["life"] == 1]
    assert [(line["size"], line["text"]) for line in comes] == [(4, "of 0")]
    assert comes[0]["own"] == 10, "what differs between ranks is rank 0's, and no mixture"
    sent: dict[str, dict[int, int]] = {}
    for line in told["sent"]:
        if line["life"] == 0:
            sent.setdefault(line["name"], {})[line["place"]] = line["extent"]
    whole = 512 * 512 * 4
    shared = ["broadcast_parameters.weight", "broadcast_optimizer_state.0"]
    assert {name: sorted(parts) for name, parts in sent.items()} == {
        **{name: [0, 2, 3] for name in shared}, "broadcast_parameters.own": [0],
    }  # fmt: skip
    for name in shared:
        assert sum(sent[name].values()) == whole and max(sent[name].values()) - min(sent[name].values()) <= 64


def test_two_that_come_are_given_it_at_once(tmp_path: Path) -> None:
    told = run(tmp_path, [1, 2], how=HEARS, waits=True)
    sizes = [line["size"] for line in told["begin"]]
    assert 3 not in sizes[sizes.index(2) :], "nobody trains before both are there"
    # Both may be started as the same rank.
    assert [line["text"] for line in told["begin"] if line["life"]] == ["of 0"] * 2


@pytest.mark.parametrize("how", [TAKER_DIES, GIVER_DIES], ids=["taker", "giver"])
def test_nothing_is_lost_with_one_that_dies_while_shares_are_on_their_way(tmp_path: Path, how: str) -> None:
    told = run(tmp_path, [1], how=how)
    died = (3, 1) if how == TAKER_DIES else (2, 0)  # Whoever comes is started as the last rank.
    assert died not in {(line["place"], line["life"]) for line in told["end"]}
    assert (tmp_path / "life.3.2").exists(), "another one has come in its place"
    steps = [line["step"] for line in told["begin"] if line["place"] == 0]
    assert steps == sorted(steps) and steps[1:3] != [0, 0], "rank 0 goes back to its last commit at most"
