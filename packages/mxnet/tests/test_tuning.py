"""Ways to deal gradients out, tried in the first steps of a trainer: weights are those of training without trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringcore_mxnet as ring
from ringcore import adapter
from support.on_ranks import IN_A_RANK, TWO, TWO_OVER_TCP, on
from support.values import distance, same_everywhere

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon

LAYERS, WIDTH, STEPS = 10, 8, 120
ROUNDING = 1e-5  # sums of two float32 gradients in another order, where they are grouped, through so many steps


@pytest.fixture
def autotune(tmp_path: Path) -> Iterator[None]:
    """Ways are tried, for two steps each; what is chosen is kept in the test's own folder."""
    if not IN_A_RANK:
        yield
        return
    current = adapter.context()
    before = current.settings
    chosen = str(tmp_path / "tuned.json")
    current.settings = dataclasses.replace(before, autotune=True, autotune_file=chosen, autotune_steps_per_sample=2)
    yield
    current.settings = before


def trainer_of(**options: Any) -> tuple[Any, ring.DistributedTrainer]:
    net = gluon.nn.HybridSequential(prefix="")
    for _ in range(LAYERS):
        net.add(gluon.nn.Dense(WIDTH, activation="tanh", in_units=WIDTH))
    mx.random.seed(7)
    net.initialize(mx.init.Xavier())
    return net, ring.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05}, **options)


def train(net: Any, trainer: ring.DistributedTrainer) -> list[np.ndarray[Any, Any]]:
    for step in range(STEPS):
        x = np.random.default_rng([step, ring.rank()]).standard_normal((4, WIDTH)).astype(np.float32)
        with autograd.record():
            loss = net(mx.nd.array(x)).square().mean()
        loss.backward()
        trainer.step(1)
    return [weights.data().asnumpy() for weights in net.collect_params().values()]


@on(TWO, TWO_OVER_TCP)
def test_ways_are_tried_and_the_weights_stay_as_they_are(autotune: None, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(*trainer_of(groups=2 * LAYERS))  # what was asked for is not tried
    net, trainer = trainer_of()
    used = []
    deal = trainer._deal
    monkeypatch.setattr(trainer, "_deal", lambda way: (used.append(str(way)), deal(way)))
    found = train(net, trainer)
    tuner = trainer._ring_tuner
    assert tuner is not None
    assert tuner.decided
    assert {"each gradient by itself", "1 groups of gradients", "16 groups of gradients"} <= set(used)
    assert same_everywhere(used)
    assert same_everywhere([weights.tobytes() for weights in found])
    assert max(map(distance, expected, found)) < ROUNDING


@on(TWO)
def test_what_was_asked_for_is_not_tried(autotune: None) -> None:
    net, trainer = trainer_of(groups=3)
    train(net, trainer)
    assert trainer._ring_tuner is None
