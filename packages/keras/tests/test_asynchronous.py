"""Sums of those gradients that are there first, in `fit`: what `tests/conformance` does not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import ringcore
import ringcore_keras as ring
from support.on_keras import BATCH, ROUNDING, TWO, compiled, data, difference, digest, model, same_everywhere
from support.on_ranks import on

WAYS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5),
    "adamw": lambda: keras.optimizers.AdamW(keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.9)),
}
# JAX compiles steps else, and updates could not be made beside them.
EAGERLY = {"run_eagerly": True} if keras.config.backend() == "jax" else {}


def trained(net: Any, batches: int, begin: int = 0) -> Any:
    """On batches of this rank's own."""
    x, y = ring.shard(data(ring.size() * 8 * BATCH))
    rows = slice(begin * BATCH, (begin + batches) * BATCH)
    net.fit(x[rows], y[rows], batch_size=BATCH, shuffle=False, verbose=0)
    return net


@on(*TWO)
@pytest.mark.parametrize("way", WAYS)
def test_with_all_ranks_and_no_staleness_it_is_synchronous_training(way: str) -> None:
    optimizer = ring.AsyncOptimizer(WAYS[way](), staleness=0)
    assert isinstance(optimizer, type(WAYS[way]()))
    net = trained(compiled(model(), optimizer, **EAGERLY), 8)
    together = trained(compiled(model(), ring.DistributedOptimizer(WAYS[way]())), 8)
    assert difference(net, together) < 2 * ROUNDING < difference(model(), net)
    assert (optimizer.updates, optimizer.dropped) == (8, 0)
    assert int(optimizer.iterations) == 8
    optimizer.synchronize()
    assert same_everywhere(digest(net.weights))


@on(*TWO)
def test_ranks_make_other_numbers_of_steps_and_end_with_the_same_weights() -> None:
    optimizer = ring.AsyncOptimizer("sgd", staleness=2, threshold=1, compression="bf16")
    net = trained(compiled(model(), optimizer, **EAGERLY), 3 + 4 * ring.rank())
    optimizer.synchronize()
    assert same_everywhere(digest(net.weights))
    made = sum(ringcore.allgather_object(optimizer.dropped, name="dropped"))
    assert 0 < optimizer.updates <= 10 - made


@on(*TWO)
def test_what_is_kept_goes_on_as_if_nothing_had_been() -> None:
    nets = []
    for goes_on in (False, True):
        optimizer = ring.AsyncOptimizer(WAYS["adamw"](), staleness=0)
        net = trained(compiled(model(), optimizer, **EAGERLY), 4)
        if goes_on:
            optimizer.synchronize()
            kept, weights = optimizer.state_dict(), net.get_weights()
            optimizer = ring.AsyncOptimizer(WAYS["adamw"](), staleness=0)
            net = compiled(model(), optimizer, **EAGERLY)
            net.set_weights(weights)
            optimizer.build(net.trainable_variables)
            optimizer.load_state_dict(kept)
        trained(net, 4, begin=4)
        optimizer.synchronize()
        nets.append(net)
    assert difference(*nets) == 0


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "average": (lambda: keras.optimizers.SGD(use_ema=True), "use_ema"),
    "accumulation": (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), "gradient_accumulation_steps"),
    "scale": (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "LossScaleOptimizer"),
    "twice": (lambda: ring.AsyncOptimizer("sgd", staleness=0), "wrap it once"),
    "distributed": (lambda: ring.DistributedOptimizer("sgd"), "wrap it once"),
    "sharded": (lambda: ring.ShardedOptimizer("sgd"), "wrap it once"),
}


@on(*TWO)
@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    make, why = REFUSED[case]
    with pytest.raises(ringcore.InvalidArgument, match=why):
        ring.AsyncOptimizer(make(), staleness=1)


@on(*TWO)
def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ringcore.InvalidArgument, match="one of none, fp16, bf16, int8, int4, not PowerSGD"):
        ring.AsyncOptimizer("sgd", staleness=1, compression=ring.Compression.powersgd(2))
    with pytest.raises(ringcore.InvalidArgument, match="wrap it once"):
        ring.DistributedOptimizer(ring.AsyncOptimizer("sgd", staleness=1))
    net = compiled(model(), ring.AsyncOptimizer("sgd", staleness=1))
    if keras.config.backend() == "jax":
        with pytest.raises(ringcore.InvalidArgument, match="compile the model with run_eagerly=True"):
            trained(net, 1)
    net = model()
    net.trainable_variables[0].assign(np.full((6, 16), ring.rank()))
    with pytest.raises(ringcore.MismatchError, match="BroadcastGlobalVariablesCallback"):
        trained(compiled(net, ring.AsyncOptimizer("sgd", staleness=1), **EAGERLY), 1)
