"""Ranks that train with Keras do what one would with all their batches."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import ringcore
import ringcore_keras as ring
from ringcore import adapter
from ringcore.adapter import tuning
from support.on_keras import (
    BATCH,
    FOUR,
    ROUNDING,
    TWO,
    arrays,
    compiled,
    data,
    difference,
    digest,
    model,
    same_everywhere,
    steps_at_once,
)
from support.on_ranks import on

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 5, 0.8)),
}


def trained(net: Any, x: Any, y: Any, batch: int, **fit: Any) -> Any:
    net.fit(x, y, batch_size=batch, shuffle=False, verbose=0, **fit)
    return net


def check_two_epochs(kind: str, options: dict[str, Any], **distributed: Any) -> None:
    """Two epochs of fit on n ranks are two epochs on one with the n-fold batch."""
    x, y = data(10 * BATCH * ring.size())
    alone = trained(compiled(model(), OPTIMIZERS[kind]()), x, y, BATCH * ring.size(), epochs=2)
    optimizer = OPTIMIZERS[kind]()
    wrapped = ring.DistributedOptimizer(optimizer, **distributed)
    begin = ring.callbacks.BroadcastGlobalVariablesCallback(0)
    net = compiled(model(), wrapped, **options)
    together = trained(net, *ring.shard((x, y)), BATCH, epochs=2, callbacks=[begin])
    assert difference(alone, together) < ROUNDING < difference(model(), together)
    assert same_everywhere(digest(together.weights))
    assert isinstance(wrapped, type(optimizer))
    assert type(wrapped).__name__ == type(optimizer).__name__
    assert int(together.optimizer.iterations) == int(alone.optimizer.iterations)


@on(*TWO)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("sgd", {}),
        pytest.param("adam", {"run_eagerly": True}, marks=pytest.mark.long),
        ("schedule", steps_at_once(5)),
    ],
    ids=str,
)
def test_ranks_train_like_one_with_all_their_batches(kind: str, options: dict[str, Any]) -> None:
    check_two_epochs(kind, options)


@on(*TWO)
def test_trials_that_were_asked_for_and_are_not_made_are_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tuning, "_told", set())
    current = adapter.context()
    monkeypatch.setattr(current, "settings", dataclasses.replace(current.settings, autotune=True))
    for _ in range(2):
        wrapped = ring.DistributedOptimizer(
            OPTIMIZERS["sgd"](), check_weights=False, compression=ring.Compression.topk(0.5)
        )
        trained(compiled(model(), wrapped), *data(2 * BATCH), BATCH)
    assert caplog.text.count("RINGCORE_AUTOTUNE does nothing for") == 1


@on(*TWO)
@pytest.mark.parametrize("compression", ["int8", pytest.param("int4", marks=pytest.mark.long)])
def test_what_is_quantised_between_hosts_is_not_inside_one(compression: str) -> None:
    check_two_epochs("sgd", {}, compression=getattr(ring.Compression, compression))


@pytest.mark.long
@on(*FOUR)
def test_four_ranks_do_so_as_well() -> None:
    check_two_epochs("adam", {})


@on(*TWO)
def test_gradients_are_accumulated_before_they_are_averaged() -> None:
    x, y = data(8 * BATCH * ring.size())
    plain = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    alone = trained(compiled(model(), plain), x, y, BATCH * ring.size(), epochs=2)
    wrapped = ring.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    together = trained(compiled(model(), wrapped), *ring.shard((x, y)), BATCH, epochs=2)
    assert difference(alone, together) < ROUNDING
    assert same_everywhere(digest(together.weights))


@pytest.fixture
def mixed_float16() -> Iterator[None]:
    usual = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(usual)


@on(*TWO)
@pytest.mark.usefixtures("mixed_float16")
def test_a_step_that_is_not_finite_on_one_rank_is_left_out_by_all() -> None:
    x, y = ring.shard(data(6 * BATCH * ring.size()))
    if ring.rank() == 1:
        x = x.copy()
        x[2 * BATCH] = np.inf
    net = trained(compiled(model(), ring.DistributedOptimizer(keras.optimizers.Adam(0.01))), x, y, BATCH)
    assert int(net.optimizer.inner_optimizer.iterations) == 5
    assert all(np.isfinite(weight).all() for weight in arrays(net.weights))
    assert same_everywhere(digest(net.weights))


@on(*TWO)
def test_local_layers_stay_a_ranks_own() -> None:
    net = model()
    wrapped = ring.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=net.layers[0])
    x, y = ring.shard(data(4 * BATCH * ring.size()))
    compiled(net, wrapped).fit(x, y, batch_size=BATCH, verbose=0)
    assert not same_everywhere(digest(net.layers[0].weights)[0])
    assert same_everywhere(digest(net.layers[1].weights))


@on(*TWO)
def test_embeddings_stay_a_ranks_own_where_ranks_have_other_numbers_of_batches() -> None:
    net = keras.Sequential(
        [keras.Input((5,)), keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    wrapped = ring.PartialDistributedOptimizer(
        keras.optimizers.Adam(0.1), local_layers=net.layers[0], sparse_as_dense=True
    )
    x = np.random.default_rng(ring.rank()).integers(0, 9, (40 if ring.rank() == 0 else 24, 5))
    compiled(net, wrapped).fit(
        x, x[:, 0] % 3, batch_size=BATCH, verbose=0,
        callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(0), ring.callbacks.EndTogetherCallback()],
    )  # fmt: skip
    embedding, kernel, _ = digest(net.weights)
    assert not same_everywhere(embedding)
    assert same_everywhere(kernel)


@on(*TWO)
def test_batch_normalisation_over_all_ranks() -> None:
    """Statistics of all ranks' batches: the way of one process with all of them."""

    def normalised(layer: Any) -> Any:
        keras.utils.set_random_seed(3)
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(5), layer, keras.layers.Dense(3)])

    x, y = data(6 * BATCH * ring.size())
    alone = compiled(normalised(keras.layers.BatchNormalization()), keras.optimizers.SGD(0.1))
    trained(alone, x, y, BATCH * ring.size())
    together = compiled(normalised(ring.SyncBatchNormalization()), ring.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    trained(together, *ring.shard((x, y)), BATCH)
    assert difference(alone, together) < ROUNDING
    assert same_everywhere(digest(together.weights))


@on(*TWO)
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"sparse_as_dense": True}, marks=pytest.mark.long)], ids=["rows", "dense"]
)
def test_gradients_of_embeddings(options: dict[str, Any]) -> None:
    """Rows on TensorFlow, dense elsewhere."""

    def net() -> Any:
        keras.utils.set_random_seed(4)
        return keras.Sequential(
            [keras.Input((5,)), keras.layers.Embedding(40, 4), keras.layers.Flatten(), keras.layers.Dense(3)]
        )

    generator = np.random.default_rng(5)
    x = generator.integers(0, 40, (4 * BATCH * ring.size(), 5))
    y = generator.integers(0, 3, len(x))
    alone = trained(compiled(net(), keras.optimizers.SGD(0.5)), x, y, BATCH * ring.size())
    wrapped = ring.DistributedOptimizer(keras.optimizers.SGD(0.5), **options)
    together = trained(compiled(net(), wrapped), *ring.shard((x, y)), BATCH)
    assert difference(alone, together) < ROUNDING
    assert same_everywhere(digest(together.weights))


@pytest.mark.long
@on(*TWO)
def test_two_models_one_after_the_other() -> None:
    """In one process, many steps."""
    digests = []
    x, y = ring.shard(data(50 * BATCH * ring.size()))
    for _ in range(2):
        net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.Adam(0.001)))
        trained(net, x, y, BATCH, epochs=10)
        assert int(net.optimizer.iterations) == 500
        digests.append(digest(net.weights))
    assert digests[0] == digests[1]
    assert same_everywhere(digests)


@on(*TWO)
def test_errors_are_kept_by_what_an_optimizer_was_made_with() -> None:
    def moved(**options: Any) -> tuple[Any, Any]:
        weight = keras.Variable(np.zeros((100, 200), "float32"), name="weight")
        optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        for _ in range(3):
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
        return arrays([weight])[0], optimizer.ring_options.compression

    gradient = np.random.default_rng(ring.rank()).standard_normal((100, 200)).astype("float32")
    exchange = ring.Compression.error_feedback("int4")
    made, kept = moved(compression=exchange)
    named, other = moved(compression="int4", error_feedback=True)
    assert kept is exchange
    np.testing.assert_array_equal(made, named)
    (error,) = other.state_dict()["errors"].values()
    np.testing.assert_allclose(made, -ring.allreduce(3 * gradient - error), atol=1e-5)
    assert same_everywhere(made.tobytes())


@on(*TWO)
def test_exchanges_go_with_a_model_and_refuse_what_they_cannot_do() -> None:
    x, y = data(4 * BATCH * ring.size())
    optimizer = ring.DistributedOptimizer(keras.optimizers.Adam(0.01), compression="onebit", backward_passes_per_step=2)
    together = trained(compiled(model(), optimizer), *ring.shard((x, y)), BATCH, epochs=2)
    assert same_everywhere(digest(together.weights))
    assert type(pickle.loads(pickle.dumps(optimizer)).ring_options.compression).__name__ == "OneBit"
    with pytest.raises(ringcore.InvalidArgument, match="leave out op"):
        ring.DistributedOptimizer("sgd", compression="topk", op=ring.Sum)
    with pytest.raises(ringcore.InvalidArgument, match=r"call it: Compression\.onebit\(\)"):
        ring.DistributedOptimizer("sgd", compression=ring.Compression.onebit)
    with pytest.raises(ringcore.InvalidArgument, match="pass a compression, or leave it out"):
        ring.DistributedOptimizer("sgd", error_feedback=True)
    narrow = keras.Variable(np.zeros((40, 50)), dtype="bfloat16")
    with pytest.raises(ringcore.InvalidArgument, match="bfloat16, and OneBit takes float32 and float64"):
        optimizer = ring.DistributedOptimizer("sgd", compression="onebit")
        optimizer.apply([keras.ops.ones((40, 50), dtype="bfloat16")], [narrow])


@on(*TWO)
def test_ranks_whose_optimizers_were_made_differently_are_told_both() -> None:
    x, y = data(2 * BATCH * ring.size())
    given = [{"compression": "int8"}, {"compression": ring.Compression.powersgd(2)}][ring.rank()]
    net = compiled(model(), ring.DistributedOptimizer("sgd", **given))
    told = r"DistributedOptimizer with different arguments: compression is int8 .* and PowerSGD\(rank=2"
    with pytest.raises(ringcore.MismatchError, match=told):
        trained(net, *ring.shard((x, y)), BATCH)
