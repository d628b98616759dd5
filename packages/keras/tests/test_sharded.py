"""An optimizer of which each rank has a share steps a model as the whole one does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import ringcore
import ringcore_keras as ring
from support.on_keras import BATCH, ROUNDING, TWO, arrays, compiled, data, difference, digest, model, same_everywhere
from support.on_ranks import on

WAYS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipvalue=0.05),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, amsgrad=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, centered=True),
}


def trained(net: Any, batches: int, *, alone: bool = False, begin: int = 0) -> Any:
    """On batches of this rank's own; `alone`: on those of all ranks, as many at a time."""
    size = ring.size()
    x, y = data(size * 8 * BATCH)
    rows = np.arange(len(x)).reshape(8, size, BATCH)[begin : begin + batches]
    chosen = (rows if alone else rows[:, ring.rank()]).reshape(-1)
    net.fit(x[chosen], y[chosen], batch_size=BATCH * (size if alone else 1), epochs=1, shuffle=False, verbose=0)
    return net


@on(*TWO)
@pytest.mark.parametrize("way", WAYS)
def test_every_class_steps_as_without_shards(way: str) -> None:
    optimizer = ring.ShardedOptimizer(WAYS[way]())
    assert isinstance(optimizer, type(WAYS[way]()))
    net = trained(compiled(model(), optimizer), 8)
    plain = WAYS[way]()
    reference = trained(compiled(model(), plain), 8, alone=True)
    assert difference(net, reference) < 2 * ROUNDING < difference(model(), net)
    assert same_everywhere(digest(net.weights))
    kept, whole = (sum(one.size for one in arrays(each.variables)) for each in (optimizer, plain))
    assert kept <= whole / ring.size() + 10
    state = optimizer.full_state_dict()
    assert state["iteration"] == 8
    assert len(state) == len(plain.variables)
    for path, value in state.items():
        variable, _, slot = path.rpartition("/")
        number = variable.partition(".")[0]
        ending = f"{reference.trainable_variables[int(number)].path.replace('/', '_')}_{slot}" if variable else slot
        (expected,) = arrays(one for one in plain.variables if one.path.endswith(ending))
        assert np.abs(value - expected).max() < 2 * ROUNDING, path


@on(*TWO)
def test_gradients_are_sent_in_half_the_bytes() -> None:
    net = trained(compiled(model(), ring.ShardedOptimizer(WAYS["sgd"](), compression="bf16")), 4)
    reference = trained(compiled(model(), WAYS["sgd"]()), 4, alone=True)
    assert 10 * ROUNDING < difference(net, reference) < 0.02
    assert same_everywhere(digest(net.weights))


@on(*TWO)
@pytest.mark.parametrize("form", ["share", "full"])
def test_training_goes_on_from_a_state(form: str) -> None:
    optimizer = ring.ShardedOptimizer(keras.optimizers.Adam(0.01))
    net = trained(compiled(model(), optimizer), 4)
    state = optimizer.state_dict() if form == "share" else optimizer.full_state_dict()
    again = ring.ShardedOptimizer(keras.optimizers.Adam(0.01))
    other = compiled(model(), again)
    other.set_weights(net.get_weights())
    again.build(other.trainable_variables)
    again.load_state_dict(state)
    reference = trained(compiled(model(), keras.optimizers.Adam(0.01)), 8, alone=True)
    trained(net, 4, begin=4)
    trained(other, 4, begin=4)
    assert difference(net, other) == 0
    assert difference(net, reference) < 2 * ROUNDING
    if form == "share":
        with pytest.raises(ringcore.InvalidArgument, match="full_state_dict"):
            again.load_state_dict({**state, "rank": 1 - state["rank"]})
    else:
        with pytest.raises(ringcore.InvalidArgument, match=r"momentum.*another model"):
            again.load_state_dict({key: value for key, value in state.items() if "momentum" not in key})


@on(*TWO)
def test_a_file_has_the_model_and_no_share(tmp_path: Path) -> None:
    net = trained(compiled(model(), ring.ShardedOptimizer("adam")), 2)
    net.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert difference(net, loaded) == 0
    assert isinstance(loaded.optimizer, keras.optimizers.Adam)
    assert not hasattr(loaded.optimizer, "full_state_dict")


@on(*TWO)
def test_the_broadcast_leaves_shares_alone() -> None:
    optimizer = ring.ShardedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    net = trained(compiled(model(), optimizer), 2)
    before = digest(optimizer.variables)
    assert not same_everywhere(before)
    x, y = data(BATCH)
    net.fit(x, y, epochs=0, verbose=0, callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert digest(optimizer.variables) == before


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "class": (keras.optimizers.Adafactor, "not known to work by element"),
    "norm": (lambda: keras.optimizers.SGD(global_clipnorm=1.0), "use clipvalue"),
    "average": (lambda: keras.optimizers.SGD(use_ema=True), "use_ema"),
    "accumulation": (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), "gradient_accumulation_steps"),
    "twice": (lambda: ring.ShardedOptimizer("sgd"), "wrap it once"),
    "distributed": (lambda: ring.DistributedOptimizer("sgd"), "wrap it once"),
    "asynchronous": (lambda: ring.AsyncOptimizer("sgd", staleness=1), "wrap it once"),
}


@on(*TWO)
@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    make, why = REFUSED[case]
    with pytest.raises(ringcore.InvalidArgument, match=why):
        ring.ShardedOptimizer(make())


@on(*TWO)
def test_a_share_of_integers_is_refused() -> None:
    with pytest.raises(ringcore.InvalidArgument, match="reduce-scatters gradients, and int8 is for allreduces"):
        ring.ShardedOptimizer("sgd", compression="int8")
