"""A plain training loop whose ranks are lost: no step is lost, and each is of those who were there at its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support import ranks

STEPS, LOST_AT, VICTIM = 6, 3, 2
SIZES = (300_000, 200_000, 100, 7)  # large gradients and small ones


def trains(sizes: list[int], steps: int, victim: int, lost_at: int, moment: str, compression: str) -> dict:
    """Gradients tell whose they are, and their sums are exact: the order of the ranks does not matter."""
    import hashlib
    import os
    import signal

    import ringcore
    import ringcore_torch as ring
    import torch
    from ringcore.job.state import context
    from ringcore_torch.reducer import GradientReducer

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    ring.init()
    place = ring.rank()
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(size)) for size in sizes])
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters(), op=ring.Sum,
        compression=getattr(ring.Compression, compression),
    )  # fmt: skip
    members, heard, ranks_there = [], [], []
    ringcore.on_membership_change(lambda: heard.append(len(members)))
    for step in range(steps):
        before = ring.size()
        last = place == victim and step == lost_at
        if last and moment == "backward":
            model[1].register_post_accumulate_grad_hook(die)
        if last and moment == "collective":
            GradientReducer._sum_up = die
        optimizer.zero_grad()
        contribution = 4.0**place * (step + 1)
        torch.stack([(parameter * contribution).sum() for parameter in model]).sum().backward()
        assert ring.size() == before, "ranks change in step() only"
        optimizer.synchronize()
        if last:
            die()
        with optimizer.skip_synchronize():
            optimizer.step()
        members.append(list(context().members))
        ranks_there.append(ring.size())
    weights = [parameter.detach() for parameter in model]
    # Quantised sums are off by what the hops round, elsewhere otherwise.
    off = 0.02 if compression == "int8" else 0.0
    assert all((weight - weight[0]).abs().max() <= off * weight[0].abs() for weight in weights)
    ring.shutdown()
    bits = hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in weights)).hexdigest()
    weights = [float(weight[0]) for weight in weights]
    return {"members": members, "sizes": ranks_there, "heard": heard, "weights": weights, "bits": bits}


@pytest.mark.parametrize(
    ("moment", "compression", "transport"),
    [
        ("collective", "int8", "tcp"),
        # tests/conformance has these moments in each run.
        pytest.param("backward", "none", "shm", marks=pytest.mark.long),
        pytest.param("collective", "bf16", "shm", marks=pytest.mark.long),
        pytest.param("step", "none", "shm", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_no_step_is_lost_with_a_rank(tmp_path: Path, moment: str, compression: str, transport: str) -> None:
    env = {"RINGCORE_ELASTIC": "1", "RINGCORE_TRANSPORT": transport}
    with ranks.started(trains, 3, tmp_path, SIZES, STEPS, VICTIM, LOST_AT, moment, compression, env=env) as job:
        outcomes = job.wait()
    results = [outcome.result for outcome in outcomes if outcome.rank != VICTIM]
    assert outcomes[VICTIM].exit_code == -signal.SIGKILL
    assert all(outcome.exit_code == 0 for outcome in outcomes if outcome.rank != VICTIM), outcomes[0].stderr
    assert results[0] == results[1]
    members = results[0]["members"]
    assert members[:LOST_AT] == [[0, 1, 2]] * LOST_AT
    assert members[LOST_AT + 1 :] == [[0, 1]] * (STEPS - LOST_AT - 1)
    if moment != "collective":  # there it may be done already
        assert members[LOST_AT] == ([0, 1] if moment == "backward" else [0, 1, 2])
    assert results[0]["sizes"] == [len(there) for there in members]
    assert results[0]["heard"] == [members.index([0, 1])]
    # Played again with the list of members.
    total = -sum(4.0**place * (step + 1) for step, there in enumerate(members) for place in there)
    off = 0.02 if compression == "int8" else 0.0
    assert results[0]["weights"] == pytest.approx([total] * len(SIZES), rel=off, abs=0)


ROWS, BATCH, EPOCHS = 24, 2, 2


def leaves_out(rows: int, batch: int, epochs: int, on_lost_rank: str, short_arena: str) -> dict:
    """The gradient of a row is how often its sample is used in a step: the parameters count that."""
    import os
    import signal

    import ringcore_torch as ring
    import torch
    from ringcore_torch.buckets import Bucket
    from ringcore_torch.elastic import ElasticSampler
    from support.rank import await_mark, mark

    place = int(os.environ["RANK"])
    if place == 0 and short_arena:
        os.environ["RINGCORE_ARENA_BYTES"] = short_arena
    ring.init()
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(rows, 20_000)) for _ in range(2)])
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), op=ring.Sum,
                                          on_lost_rank=on_lost_rank)  # fmt: skip
    sampler, step = ElasticSampler(range(rows)), 0
    launch = Bucket.launch

    def told(bucket: Bucket, **options: object) -> None:
        if options["blocking"] and step in (1, 4):  # another one is under way
            mark(f"step {step}")
        launch(bucket, **options)

    Bucket.launch = told
    dropped = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for samples in sampler.batches(batch):
            optimizer.zero_grad()
            sum(parameter[samples].sum() for parameter in model).backward()
            if (place, step) in ((3, 1), (2, 4)):
                for other in range(place):
                    await_mark(f"step {step}", str(other))
                os.kill(os.getpid(), signal.SIGKILL)
            before = model[0].detach().clone()
            optimizer.step()
            if samples and torch.equal(before, model[0]):
                dropped.append(step)
            step += 1
    values = [parameter.detach() for parameter in model]
    assert all(torch.equal(each, torch.full_like(each, float(each[0, 0]))) for each in values), values
    ring.shutdown()
    return {"values": [float(each[0, 0]) for each in values], "dropped": dropped}


@pytest.mark.parametrize(
    ("on_lost_rank", "short_arena"), [("skip", ""), pytest.param("retry", "8MiB", marks=pytest.mark.long)]
)
def test_a_step_is_left_out_and_its_samples_come_again(tmp_path: Path, on_lost_rank: str, short_arena: str) -> None:
    # An arena of 8 MiB has room for the gradients beside the engine's own buffers, and not for them twice.
    env = {"RINGCORE_ELASTIC": "1", "RINGCORE_FUSION_THRESHOLD_BYTES": "1MiB"}
    args = ROWS, BATCH, EPOCHS, on_lost_rank, short_arena
    with ranks.started(leaves_out, 4, tmp_path, *args, env=env) as job:
        outcomes = job.wait()
    assert [outcome.exit_code for outcome in outcomes] == [0, 0, -signal.SIGKILL, -signal.SIGKILL], outcomes[0].stderr
    for outcome in outcomes[:2]:
        assert outcome.result == {"values": [-EPOCHS, -EPOCHS], "dropped": [1, 4]}, outcome.stderr
        assert outcome.stderr.count("there is too little memory") == bool(short_arena)
        assert outcome.stderr.count("is left out") == 2
