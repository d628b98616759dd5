"""Ranks that step on their own, and meet now and then."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringcore
import ringcore_mxnet as ring
from ringcore import adapter
from support.on_ranks import THREE_OVER_TCP, TWO, on
from support.values import distance, of, same_everywhere

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon

BATCH = 4
# Twelve steps of float32 sums in another order; gradients and weights are about 1.
ROUNDING = 1e-6
SGD = {"learning_rate": 0.1}


def net(seed: int = 1) -> Any:
    made = gluon.nn.HybridSequential(prefix="")
    made.add(gluon.nn.Dense(8, activation="tanh", in_units=6), gluon.nn.Dense(3, in_units=8))
    mx.random.seed(seed)
    made.initialize(mx.init.Xavier())
    return made


def step(made: Any, trainer: Any, number: int) -> None:
    """With a batch of this rank's own."""
    x = mx.nd.array(of(10 * number + ring.rank(), BATCH, 6).astype(np.float32))
    with autograd.record():
        loss = (made(x) ** 2).sum(axis=1)
    loss.backward()
    trainer.step(BATCH)


def values(made: Any) -> list[Any]:
    return [param.data().asnumpy() for param in made.collect_params().values()]


def alike(arrays: list[Any]) -> bool:
    return same_everywhere([array.tobytes() for array in arrays])


def diloco(made: Any, rate: float, every: int, **options: Any) -> Any:
    outer = mx.optimizer.SGD(learning_rate=rate, momentum=options.pop("momentum", 0.0))
    return ring.DiLoCoTrainer(made.collect_params(), "sgd", SGD, outer=outer, every=every, **options)


@on(TWO, THREE_OVER_TCP)
@pytest.mark.parametrize("way", ["local", "diloco"])
def test_meeting_at_each_step_is_training_together(way: str) -> None:
    mine, together = net(), net()
    trainer = (
        ring.LocalSGDTrainer(mine.collect_params(), "sgd", SGD, every=1) if way == "local" else diloco(mine, 1.0, 1)
    )
    reference = ring.DistributedTrainer(together.collect_params(), "sgd", SGD)
    for number in range(12):
        step(mine, trainer, number)
        step(together, reference, number)
        assert alike(values(mine))
    for own, other in zip(values(mine), values(together), strict=True):
        assert distance(own, other) < ROUNDING


@on(TWO, THREE_OVER_TCP)
def test_what_is_sent_of_an_average_is_how_far_ranks_have_come(tmp_path: Path) -> None:
    nets = []
    for sent in ("none", "bf16"):
        made = net()
        made[1].bias.set_data(mx.nd.full((3,), 100.0))
        trainer = ring.LocalSGDTrainer(made.collect_params(), "sgd", {"learning_rate": 1e-4}, every=3, compression=sent)
        for number in range(8):
            if number == 4 and sent != "none":  # goes on between two meetings in a trainer of its own
                file = str(tmp_path / f"{ring.rank()}.states")
                trainer.save_states(file)
                options = {"every": 3, "compression": sent}
                trainer = ring.LocalSGDTrainer(made.collect_params(), "sgd", {"learning_rate": 1e-4}, **options)
                trainer.load_states(file)
            step(made, trainer, number)
            assert alike(values(made)) == (number % 3 == 2)
        trainer.synchronize()
        assert alike(values(made))
        nets.append(values(made))
    # What is rounded is the way, and not the weights of 100.
    assert 1e-6 < max(distance(own, other) for own, other in zip(*nets, strict=True)) < 0.01


@on(TWO)
def test_fragments_take_turns() -> None:
    mine = net()
    trainer = diloco(mine, 1.0, 4, fragments=2, compression=ring.Compression.int8)
    for number in range(1, 11):
        step(mine, trainer, number)
        arrays = values(mine)
        assert [alike([array]) for array in arrays] == [number % 4 == 0] * 2 + [number % 4 == 2] * 2
    trainer.synchronize()
    assert alike(before := values(mine))
    trainer.synchronize()  # nothing is left
    assert all(map(np.array_equal, before, values(mine)))


@on(TWO)
def test_the_outer_optimizer_steps_by_the_average_way_and_is_kept(tmp_path: Path) -> None:
    mine, alone = net(), net()
    trainer = diloco(mine, 0.7, 3, momentum=0.9)
    inner = gluon.Trainer(alone.collect_params(), "sgd", SGD, kvstore=None)
    anchors = values(alone)
    momenta = [np.zeros_like(one) for one in anchors]
    for number in range(1, 13):
        if number == 8:  # goes on in a trainer of its own
            file = str(tmp_path / f"{ring.rank()}.states")
            trainer.save_states(file)
            trainer = diloco(mine, 0.7, 3, momentum=0.9)
            trainer.load_states(file)
        step(mine, trainer, number)
        step(alone, inner, number)
        if number % 3 == 0:
            for place, param in enumerate(alone.collect_params().values()):
                way = ringcore.allreduce(anchors[place] - param.data().asnumpy())
                momenta[place] = 0.9 * momenta[place] - 0.7 * way
                anchors[place] = anchors[place] + momenta[place]
                param.set_data(mx.nd.array(anchors[place]))
        for own, other in zip(values(mine), values(alone), strict=True):
            assert distance(own, other) < ROUNDING


@on(TWO)
@pytest.mark.parametrize("goes_on", [False, True])
def test_arguments_that_differ_are_told_before_the_first_step(goes_on: bool, tmp_path: Path) -> None:
    """Also where training goes on from a state."""
    own = ring.rank()
    made = net()
    outer = mx.optimizer.SGD(learning_rate=0.5 + 0.25 * own)
    trainers = {
        r"LocalSGDTrainer with different arguments: every is 2 on ranks \[0\] and 3 on ranks \[1\]\. Remedy": (
            ring.LocalSGDTrainer(made.collect_params(), "sgd", SGD, every=2 + own, check_weights=False)
        ),
        r"DiLoCoTrainer .*every is 4.* and 6.*; compression is int8 on ranks \[0\] and bf16 on ranks \[1\]; "
        r"fragments is 1.* and 2.*; outer is SGD .*0\.5": ring.DiLoCoTrainer(
            made.collect_params(), "sgd", SGD, outer=outer, every=4 + 2 * own, fragments=1 + own,
            compression=["int8", "bf16"][own],
        ),
    }  # fmt: skip
    before = values(made)
    for number, (told, trainer) in enumerate(trainers.items()):
        if goes_on and isinstance(trainer, ring.DiLoCoTrainer):
            file = str(tmp_path / f"{own}.{number}.states")
            diloco(made, 0.5, 4, fragments=1 + own).save_states(file)
            trainer.load_states(file)
        with pytest.raises(ringcore.MismatchError, match=told):
            step(made, trainer, 0)
    assert all(map(np.array_equal, before, values(made)))


@on(TWO)
def test_one_optimizer_of_the_same_arguments_is_the_same_on_all_ranks() -> None:
    """What it was made with is compared, and not where it lies or what it has counted."""
    made = net()
    schedule = mx.lr_scheduler.FactorScheduler(step=10, factor=0.5, base_lr=0.7)
    outer = mx.optimizer.NAG(learning_rate=0.7, momentum=0.9, lr_scheduler=schedule)
    outer.num_update = ring.rank()
    trainer = ring.DiLoCoTrainer(made.collect_params(), "sgd", SGD, outer=outer, every=1)
    for number in range(3):
        step(made, trainer, number)
    assert alike(values(made))


@on(TWO)
@pytest.mark.parametrize(("delay", "alpha", "fragments"), [(1, 0.25, 1), (2, 0.0, 1), (1, 0.5, 2), (3, 0.5, 2)])
def test_outer_steps_are_taken_later_by_the_ways_of_before(
    delay: int, alpha: float, fragments: int, tmp_path: Path
) -> None:
    """Also where training goes on from a state, or as a rank that joins an elastic job, with ways under way."""
    mine, alone = net(), net()
    options: dict[str, Any] = {"momentum": 0.9, "delay": delay, "alpha": alpha, "fragments": fragments}
    trainer = diloco(mine, 0.7, 4, **options)
    inner = gluon.Trainer(alone.collect_params(), "sgd", SGD, kvstore=None)
    params = list(alone.collect_params().values())
    halves = [range(len(params))] if fragments == 1 else [range(2), range(2, 4)]
    anchors = values(alone)
    momenta = [np.zeros_like(one) for one in anchors]
    ways: dict[int, Any] = {}
    for number in range(1, 15):
        if number in (4, 8):
            file = str(tmp_path / f"{ring.rank()}.states")
            trainer.save_states(file)
            trainer = diloco(mine, 0.7, 4, **options)
            trainer.load_states(file)
        elif number in (7, 12):
            progress = trainer.progress()
            trainer = diloco(mine, 0.7, 4, **options)
            trainer.take_over(progress)
        step(mine, trainer, number)
        step(alone, inner, number)
        for half, places in enumerate(halves):
            phase = number + half * 4 // fragments
            if (phase + delay) % 4 == 0:
                for place in places:
                    ways[place] = ringcore.allreduce(anchors[place] - params[place].data().asnumpy())
            if phase % 4 == 0 and places[0] in ways:
                for place in places:
                    momenta[place] = 0.9 * momenta[place] - 0.7 * ways[place]
                    anchors[place] = anchors[place] + momenta[place]
                    own = params[place].data().asnumpy()
                    params[place].set_data(mx.nd.array(anchors[place] + alpha * (own - anchors[place])))
        for own, other in zip(values(mine), values(alone), strict=True):
            assert distance(own, other) < ROUNDING
    trainer.synchronize()
    assert alike(values(mine))


class Arrives:
    """An array that notes whether somebody has waited for it."""

    has_arrived = False

    def wait_to_read(self) -> None:
        self.has_arrived = True


@on(TWO)
def test_what_is_under_way_has_arrived_before_another_state_is_taken_over(tmp_path: Path) -> None:
    """Else the next one of its name could be sent too soon."""
    mine = net()
    trainer = diloco(mine, 0.7, 4, delay=2)
    trainer.save_states(str(tmp_path / "states"))
    for number in range(2):
        step(mine, trainer, number)
    sent = Arrives()
    trainer._ring_ways[0].append(sent)
    trainer.load_states(str(tmp_path / "states"))
    assert sent.has_arrived


@on(TWO)
def test_nobody_waits_while_ways_are_averaged(shared_folder: Path) -> None:
    """Rank 1 makes its second step, and sends its way, when rank 0 has made its third one."""
    pipe = shared_folder / "pipe"
    with contextlib.suppress(FileExistsError):
        os.mkfifo(pipe)
    mine = net()
    trainer = diloco(mine, 1.0, 4, delay=2, alpha=0.0)
    for number in range(4):
        if ring.rank() == 1 and number == 1:
            pipe.read_bytes()  # ends when rank 0 has opened and closed it
        step(mine, trainer, number)
        if number < 3:
            values(mine)  # MXNet has made the step
        if ring.rank() == 0 and number == 2:
            pipe.write_bytes(b"")
    assert alike(values(mine))


def made(mine: Any, way: str, delay: int) -> Any:
    if way == "diloco":
        return diloco(mine, 0.7, 4, fragments=2, delay=delay, check_weights=False)
    return ring.LocalSGDTrainer(mine.collect_params(), "sgd", SGD, every=4, check_weights=False)


WAYS = [("local", 0), ("diloco", 0), ("diloco", 1), ("diloco", 3)]


@on(TWO)
@pytest.mark.parametrize(("way", "delay"), WAYS)
def test_a_state_that_not_all_ranks_have_loaded_is_told_before_the_first_step(
    way: str, delay: int, tmp_path: Path
) -> None:
    """A node has lost its file."""
    mine = net()
    trainer = made(mine, way, delay)
    for number in range(3):
        step(mine, trainer, number)
    again = made(mine, way, delay)
    if ring.rank() == 0:
        trainer.save_states(str(tmp_path / "states"))
        again.load_states(str(tmp_path / "states"))
    before = values(mine)
    told = r"the loaded state is after [03] steps on ranks \[0\] and None on ranks \[1\]"
    with pytest.raises(ringcore.MismatchError, match=told):
        step(mine, again, 3)
    assert all(map(np.array_equal, before, values(mine)))


@on(TWO)
@pytest.mark.parametrize("way", ["local", "diloco"])
def test_in_an_elastic_job_one_rank_loads_for_all(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = net()
    trainer = made(mine, way, 0)
    trainer.save_states(str(tmp_path / "states"))
    if ring.rank() == 0:
        trainer.load_states(str(tmp_path / "states"))
    monkeypatch.setattr(adapter, "is_elastic", lambda: True)
    step(mine, trainer, 0)
    assert trainer.progress()["steps"] == 1


@on(TWO)
@pytest.mark.parametrize(("way", "delay"), WAYS)
@pytest.mark.parametrize("back", [1, 4])
def test_a_state_that_not_all_ranks_have_loaded_is_told_when_they_meet(
    back: int, way: str, delay: int, tmp_path: Path
) -> None:
    """Also one of so many steps that ranks meet behind the same batch as without it."""
    mine = net()
    trainer = made(mine, way, delay)
    for number in range(6):
        if number == 6 - back:
            trainer.save_states(str(tmp_path / "states"))
        step(mine, trainer, number)
    if ring.rank() == 1:
        trainer.load_states(str(tmp_path / "states"))

    def go_on() -> None:
        for number in range(12):
            step(mine, trainer, number)

    told = r"are not at the same step: .*states loaded is 0 on ranks \[0\] and 1 on ranks \[1\]\. Remedy: load "
    with pytest.raises(ringcore.MismatchError, match=told):
        go_on()


@on(TWO)
def test_what_does_not_fit_is_refused() -> None:
    params = net().collect_params()
    with pytest.raises(ringcore.InvalidArgument, match="every is at least 1"):
        ring.LocalSGDTrainer(params, "sgd", every=0)
    with pytest.raises(ringcore.InvalidArgument, match="at most every = 2"):
        diloco(net(), 1.0, 2, fragments=3)
    with pytest.raises(ringcore.InvalidArgument, match="below every = 2, not 2"):
        diloco(net(), 1.0, 2, delay=2)
    with pytest.raises(ringcore.InvalidArgument, match="alpha is from 0 to 1, not 2"):
        diloco(net(), 1.0, 2, delay=1, alpha=2)
    with pytest.raises(ringcore.InvalidArgument, match="unwrapped"):
        ring.LocalSGDTrainer(params, ring.DistributedOptimizer(mx.optimizer.SGD()), every=2)
    differs = net(ring.rank())
    with pytest.raises(ringcore.MismatchError, match="broadcast_parameters"):
        step(differs, diloco(differs, 1.0, 2), 0)
