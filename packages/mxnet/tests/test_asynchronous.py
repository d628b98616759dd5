"""Sums of those gradients that are there first, in a trainer and in a store: what `tests/conformance` does not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ringcore
import ringcore_mxnet as ring
from support.on_ranks import THREE_OVER_TCP, TWO, on
from support.values import distance, of, same_everywhere

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon

BATCH = 4


def net() -> Any:
    made = gluon.nn.HybridSequential(prefix="")
    made.add(gluon.nn.Dense(8, activation="tanh", in_units=6), gluon.nn.Dense(3, in_units=8))
    mx.random.seed(1)
    made.initialize(mx.init.Xavier())
    return made


def learn(made: Any, trainer: Any, number: int) -> None:
    """With a batch of this rank's own."""
    x = mx.nd.array(of(10 * number + ring.rank(), BATCH, 6).astype(np.float32))
    with autograd.record():
        loss = (made(x) ** 2).sum(axis=1)
    loss.backward()
    trainer.step(BATCH)


def values(made: Any) -> list[Any]:
    return [param.data().asnumpy() for param in made.collect_params().values()]


def alike(made: Any) -> bool:
    return same_everywhere([array.tobytes() for array in values(made)])


def adam(made: Any, **options: Any) -> Any:
    schedule = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.05)
    return ring.AsyncTrainer(made.collect_params(), mx.optimizer.Adam(lr_scheduler=schedule), **options)


@on(TWO, THREE_OVER_TCP)
def test_with_all_ranks_and_no_staleness_it_is_synchronous_training() -> None:
    mine, together = net(), net()
    trainer = adam(mine, staleness=0)
    schedule = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.05)
    reference = ring.DistributedTrainer(together.collect_params(), mx.optimizer.Adam(lr_scheduler=schedule))
    for number in range(6):
        learn(mine, trainer, number)
        learn(together, reference, number)
    trainer.synchronize()
    assert alike(mine)
    for own, other in zip(values(mine), values(together), strict=True):
        assert distance(own, other) < 1e-5


@on(TWO)
def test_what_is_kept_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    ends, kept = [], tmp_path / f"{ring.rank()}.states"
    for goes_on in (False, True):
        made = net()
        trainer = adam(made, staleness=0)
        for number in range(6):
            if number == 3 and goes_on:
                trainer.synchronize()
                trainer.save_states(str(kept))
                trainer = adam(made, staleness=0)
                trainer.load_states(str(kept))
            learn(made, trainer, number)
        trainer.synchronize()
        ends.append(values(made))
    assert all(map(np.array_equal, *ends))


@on(TWO)
def test_a_module_trains_with_the_store() -> None:
    symbol = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="layer")
    symbol = mx.sym.LinearRegressionOutput(symbol, mx.sym.Variable("label"), name="out")
    x = of(ring.rank(), 40, 3).astype(np.float32)
    y = x @ np.array([[1.0, -1.0], [2.0, 0.5], [0.0, 3.0]], np.float32)
    module = mx.mod.Module(symbol, data_names=["data"], label_names=["label"])
    store = ring.AsyncRing(staleness=1, threshold=1)
    module.fit(
        mx.io.NDArrayIter(x, y, 4, label_name="label"), num_epoch=20 + 5 * ring.rank(), kvstore=store,
        optimizer="sgd", optimizer_params={"learning_rate": 0.1}, initializer=mx.init.Zero(),
    )  # fmt: skip
    store.barrier()
    weight = mx.nd.zeros((2, 3))
    store.pull("layer_weight", weight)
    assert same_everywhere(weight.asnumpy().tobytes())
    assert distance(weight, np.array([[1.0, 2.0, 0.0], [-1.0, 0.5, 3.0]])) < 0.3
    assert store._held().steps.updates > 50


@on(TWO)
def test_what_cannot_be_is_refused() -> None:
    made = net()
    with pytest.raises(ringcore.InvalidArgument, match="from 0, not -1"):
        ring.AsyncTrainer(made.collect_params(), "sgd", staleness=-1)
    with pytest.raises(ringcore.InvalidArgument, match="pass it the optimizer unwrapped"):
        wrapped = ring.DistributedOptimizer(mx.optimizer.SGD())
        ring.AsyncTrainer(made.collect_params(), wrapped, staleness=1)
    with pytest.raises(ringcore.InvalidArgument, match="AsyncTrainer does not take OneBit"):
        ring.AsyncTrainer(made.collect_params(), "sgd", staleness=1, compression=ring.Compression.onebit())
    trainer = ring.AsyncTrainer(made.collect_params(), "sgd", staleness=0)
    learn(made, trainer, 0)
    with pytest.raises(ringcore.InvalidArgument, match="has no gradient since the last step"):
        trainer.step(BATCH)
    trainer.synchronize()


@on(TWO)
def test_what_a_store_refuses() -> None:
    store, value = mx.kv.create("dist_ring_async"), mx.nd.ones((3,))
    assert store.type == "dist_ring_async"
    store.init("a", value)
    store.init("b", value)
    with pytest.raises(ringcore.InvalidArgument, match="pass update_on_kvstore=True"):
        store.push("a", value)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    with pytest.raises(ringcore.InvalidArgument, match="gives weights, and no sums"):
        store.pushpull("a", value)
    store.push("a", value)
    with pytest.raises(ringcore.InvalidArgument, match="'a' was pushed again before 'b' was"):
        store.push("a", value)
    out = mx.nd.zeros((3,))
    store.pull("a", out)
    assert distance(out, np.zeros(3)) == 0.0  # until the step is whole
    store.push("b", value)
    store.barrier()
    store.pull("b", out)
    assert distance(out, np.full(3, 1.0 - store._held().steps.updates)) == 0.0
    with pytest.raises(ringcore.InvalidArgument, match="init all before"):
        store.init("c", value)
