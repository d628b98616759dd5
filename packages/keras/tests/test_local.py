"""Ranks that step on their own in `fit`, and meet now and then."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import ringcore
import ringcore_keras as ring
from support.on_keras import BATCH, ROUNDING, TWO, arrays, compiled, data, difference, digest, model, same_everywhere
from support.on_ranks import on


def sgd(rate: float = 0.1, **options: Any) -> Any:
    return keras.optimizers.SGD(rate, **options)


def trained(net: Any, batches: int, *callbacks: Any, epochs: int = 1) -> Any:
    """On batches of this rank's own."""
    x, y = ring.shard(data(ring.size() * batches * BATCH))
    net.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))
    return net


@on(*TWO)
@pytest.mark.parametrize("way", ["local", "diloco"])
def test_meeting_at_each_step_is_training_together(way: str) -> None:
    meets = ring.callbacks.LocalSGDCallback(1) if way == "local" else ring.callbacks.DiLoCoCallback(sgd(1.0), 1)
    net = trained(compiled(model(), sgd()), 10, meets)
    together = trained(compiled(model(), ring.DistributedOptimizer(sgd())), 10)
    assert difference(net, together) < ROUNDING < difference(model(), together)
    assert same_everywhere(digest(net.weights))


class Differs(keras.callbacks.Callback):
    """After which steps ranks have different values of each variable."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[bool]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found.append([not same_everywhere(digest([one])) for one in self.model.trainable_variables])


@on(*TWO)
def test_fragments_take_turns_and_training_ends_with_the_same_weights() -> None:
    differs = Differs()
    meets = ring.callbacks.DiLoCoCallback(sgd(1.0), 4, fragments=2, compression=ring.Compression.int8)
    net = trained(compiled(model(), sgd()), 3, meets, differs, epochs=3)
    # The first variable is larger than all others.
    turns = {2: [True] + [False] * 3, 0: [False] + [True] * 3}
    assert differs.found == [turns.get(number % 4, [True] * 4) for number in range(1, 10)]
    assert same_everywhere(digest(net.weights))


@on(*TWO)
def test_the_outer_optimizer_steps_by_the_average_way() -> None:
    net = trained(compiled(model(), sgd()), 6, ring.callbacks.DiLoCoCallback(sgd(0.7, momentum=0.9, nesterov=True), 3))
    reference, outer = compiled(model(), sgd()), sgd(0.7, momentum=0.9, nesterov=True)
    x, y = ring.shard(data(ring.size() * 6 * BATCH))
    for rows in (slice(0, 3 * BATCH), slice(3 * BATCH, 6 * BATCH)):
        anchors = arrays(reference.trainable_variables)
        reference.fit(x[rows], y[rows], batch_size=BATCH, shuffle=False, verbose=0)
        ways = [anchor - own for anchor, own in zip(anchors, arrays(reference.trainable_variables), strict=True)]
        for variable, anchor in zip(reference.trainable_variables, anchors, strict=True):
            variable.assign(anchor)
        averages = [keras.ops.convert_to_tensor(ringcore.allreduce(way)) for way in ways]
        outer.apply(averages, reference.trainable_variables)
    assert difference(net, reference) < ROUNDING


@on(*TWO)
def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ringcore.InvalidArgument, match="every is at least 1"):
        ring.callbacks.LocalSGDCallback(0)
    with pytest.raises(ringcore.InvalidArgument, match="at most every = 2"):
        ring.callbacks.DiLoCoCallback(sgd(), 2, fragments=3)
    with pytest.raises(ringcore.InvalidArgument, match="compile the model with the optimizer itself"):
        trained(compiled(model(), ring.DistributedOptimizer(sgd())), 1, ring.callbacks.LocalSGDCallback(2))
    keras.utils.set_random_seed(ring.rank())
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    with pytest.raises(ringcore.MismatchError, match="BroadcastGlobalVariablesCallback"):
        trained(compiled(net, sgd()), 1, ring.callbacks.DiLoCoCallback(sgd(), 2))
