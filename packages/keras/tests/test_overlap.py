"""Steps on PyTorch that end before their variables are stepped: the same bits, and whoever reads one waits."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import ringcore
import ringcore_keras as ring
from support import ranks
from support.on_keras import INSTALLED, arrays, compiled, data, digest, model
from support.on_ranks import Start, on
from support.rank import caught

if "torch" not in INSTALLED:
    pytest.skip("overlap='forward' is there on PyTorch alone", allow_module_level=True)

ON_TORCH = (("KERAS_BACKEND", "torch"),)
TWO_OVER_TCP = Start(2, "tcp", variables=ON_TORCH)
# See support.torch_models.THREE_IN_ORDER; and what is quantised is rounded by each plan in its own way.
IN_ORDER = (*ON_TORCH, ("RINGCORE_DETERMINISTIC", "1"))
TWO_IN_ORDER = Start(2, "tcp", variables=IN_ORDER)
THREE_IN_ORDER = Start(3, "tcp", variables=IN_ORDER)

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.8), clipnorm=0.5),
    "adamw": lambda: keras.optimizers.AdamW(0.01, clipvalue=0.1),
}


class Tied(keras.Layer):  # type: ignore[misc]
    """Reads the variables of a layer that it does not call."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, keras.ops.transpose(self.inner.kernel)) + self.inner.bias[0]


def drawn_model(seed: int) -> Any:
    """A classifier of `data`, drawn at random."""
    draw = random.Random(seed)
    keras.utils.set_random_seed(seed)
    width = draw.choice([4, 8, 12])
    mixed = draw.random() < 0.3
    policy = "mixed_bfloat16" if mixed else "float32"
    x = inputs = keras.Input((6,))
    x = keras.layers.Dense(width, dtype=policy)(x)
    for _ in range(draw.randint(1, 4)):
        kind = draw.choice(["dense", "wide", "norm", "tied", "attention", "recurrent", "constrained"])
        if kind == "dense":
            x = keras.layers.Dense(width, activation="tanh", dtype=policy, kernel_regularizer="l2")(x)
        elif kind == "wide":
            x = keras.layers.Dense(3000, activation="tanh", dtype=policy)(x)
            x = keras.layers.Dense(width, use_bias=False, dtype=policy)(x)
        elif kind == "norm":
            x = keras.layers.BatchNormalization(dtype=policy)(x)
        elif kind == "constrained":
            x = keras.layers.Dense(width, kernel_constraint="unit_norm", dtype=policy)(x)
        elif kind == "tied":
            inner = keras.layers.Dense(width, dtype=policy)
            x = Tied(inner)(inner(x))
        elif kind == "attention":
            rows = keras.layers.Reshape((1, width))(x)
            x = keras.layers.Flatten()(keras.layers.MultiHeadAttention(2, 4, dtype=policy)(rows, rows))
        else:
            x = keras.layers.LSTM(width, dtype=policy)(keras.layers.Reshape((1, width))(x))
    return keras.Model(inputs, keras.layers.Dense(3, dtype="float32")(x))


def is_pending(net: Any) -> bool:
    """Whether some variable is still to be stepped."""
    from ringcore_torch.pending import PendingParameter

    return any(type(variable._value) is PendingParameter for variable in net.trainable_variables)


class Script(keras.callbacks.Callback):  # type: ignore[misc]
    """Reads and changes at random what a user may; counts the steps behind which variables were still to be stepped."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draw = random.Random(seed)
        self.deferred = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.deferred += is_pending(self.model)
        reads = self._draw.randrange(8)
        optimizer = self.model.optimizer
        if reads == 0:
            self.model.get_weights()
        elif reads == 1:
            self.model.evaluate(np.ones((4, 6), "float32"), np.zeros(4), verbose=0)
        elif reads == 2:
            self.model.predict(np.ones((4, 6), "float32"), verbose=0)
        elif reads == 3:
            variable = self.model.trainable_variables[0]
            variable.assign(variable * 0.99)
        elif reads == 4 and isinstance(optimizer._learning_rate, keras.Variable):
            optimizer.learning_rate = float(optimizer.learning_rate) * 0.9
        elif reads == 5 and isinstance(optimizer._learning_rate, keras.Variable):
            optimizer.learning_rate.assign(optimizer.learning_rate * 0.9)
        elif reads == 6:
            optimizer.variables[-1].assign(optimizer.variables[-1] * 0.5)
        elif reads == 7:
            optimizer.weight_decay = 0.1


def trained(seed: int, kind: str, **options: Any) -> tuple[list[str], int]:
    """The bits of a model and its optimizer after some steps, and how many of these were deferred."""
    net = drawn_model(seed)
    optimizer = OPTIMIZERS[kind]()
    if kind == "adamw":
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    script = Script(seed)
    groups = random.Random(seed).choice([None, 2, 3, 100])
    compiled(net, ring.DistributedOptimizer(optimizer, groups=groups, **options))
    net.fit(*ring.shard(data(6 * 4 * ring.size())), batch_size=4, shuffle=False, verbose=0, callbacks=[script])
    return digest([*net.weights, *net.optimizer.variables]), script.deferred


@on(TWO_OVER_TCP, THREE_IN_ORDER)
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
@pytest.mark.parametrize(
    ("first", "count"), [pytest.param(0, 8, id="8"), pytest.param(8, 60, id="60", marks=pytest.mark.long)]
)
def test_the_same_bits_as_without(first: int, count: int, kind: str) -> None:
    deferred = 0
    for seed in range(first, first + count):
        expected, none = trained(seed, kind)
        got, pending = trained(seed, kind, overlap="forward")
        assert none == 0
        assert got == expected, seed
        deferred += pending
    assert deferred > 2 * count


def stepped(overlap: str = "forward", **options: Any) -> Any:
    """A model whose last step has not been made."""
    keras.utils.set_random_seed(2)
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3000, activation="tanh"), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    compiled(net, ring.DistributedOptimizer(optimizer, overlap=overlap, **options))
    for step in range(3):
        net.train_step((np.full((2, 6), 1.0 + ring.rank() + step, "float32"), np.array([0, 1])))
    return net


def saved(net: Any, folder: Path) -> Any:
    file = folder / f"{ring.rank()}.keras"
    net.save(file)
    return keras.saving.load_model(file)


def by_hand(net: Any) -> list[Any]:
    return [keras.ops.convert_to_numpy(keras.ops.matmul(np.ones((1, 6), "float32"), net.layers[0].kernel))]


READS: dict[str, Callable[[Any, Path], list[Any]]] = {
    "get_weights": lambda net, _: net.get_weights(),
    "variables": lambda net, _: arrays(net.trainable_variables),
    "save": lambda net, folder: saved(net, folder).get_weights(),
    "saved optimizer": lambda net, folder: arrays(saved(net, folder).optimizer.variables),
    "optimizer": lambda net, _: arrays(net.optimizer.variables),
    "predict": lambda net, _: [net.predict(np.ones((2, 6), "float32"), verbose=0)],
    "evaluate": lambda net, _: net.evaluate(np.ones((2, 6), "float32"), np.zeros(2), verbose=0),
    "gradients": lambda net, _: [variable.value.grad.numpy().copy() for variable in net.trainable_variables],
    "pickled optimizer": lambda net, _: arrays(pickle.loads(pickle.dumps(net.optimizer)).variables),
    "copied": lambda net, _: keras.models.clone_model(net).get_weights() and net.get_weights(),
    "broadcast": lambda net, _: ring.broadcast_variables(net.variables) or arrays(net.variables),
    "by hand": lambda net, _: by_hand(net),
}


@on(TWO_OVER_TCP)
@pytest.mark.parametrize("read", list(READS))
def test_whoever_reads_waits(read: str, tmp_path: Path) -> None:
    expected = READS[read](stepped("backward"), tmp_path)
    net = stepped(groups=3)
    assert is_pending(net)
    got = READS[read](net, tmp_path)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert digest(net.weights) == digest(stepped("backward").weights)
    assert not is_pending(net)


class Foreign(keras.Layer):  # type: ignore[misc]
    """Hands its variable to what asks no tensor whether it may be read."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.kernel = of.kernel

    def call(self, x: Any) -> Any:
        import torch

        with torch.no_grad():
            return x @ torch.utils.dlpack.from_dlpack(torch._C._to_dlpack(self.kernel.value))


@on(TWO_OVER_TCP)
def test_a_layer_waits_before_its_forward() -> None:
    outcomes = []
    for overlap in ("backward", "forward"):
        keras.utils.set_random_seed(2)
        inner = keras.layers.Dense(3)
        net = compiled(keras.Sequential([keras.Input((6,)), inner]), ring.DistributedOptimizer("sgd", overlap=overlap))
        foreign = Foreign(inner)
        foreign(np.ones((1, 6), "float32"))  # built
        for step in range(2):
            net.train_step((np.full((2, 6), 1.0 + ring.rank() + step, "float32"), np.array([0, 1])))
        assert is_pending(net) is (overlap == "forward")
        outcomes.append(keras.ops.convert_to_numpy(foreign(np.ones((1, 6), "float32"))))
        assert not is_pending(net)
    np.testing.assert_array_equal(*outcomes)


@on(TWO_OVER_TCP)
def test_layers_inside_of_one_of_mixed_precision_are_stepped_as_outside() -> None:
    """There Keras reads each variable as a cast."""
    outcomes = []
    for overlap in ("backward", "forward"):
        keras.utils.set_random_seed(2)
        inputs = keras.Input((2, 6))
        rows = keras.layers.MultiHeadAttention(2, 4, dtype="mixed_bfloat16")(inputs, inputs)
        net = keras.Model(inputs, keras.layers.Dense(3, dtype="float32")(keras.layers.Flatten()(rows)))
        compiled(net, ring.DistributedOptimizer("adam", overlap=overlap, groups=100))
        for step in range(4):
            x = np.random.default_rng(10 * step + ring.rank()).standard_normal((4, 2, 6)).astype("float32")
            net.train_step((x, np.array([0, 1, 2, 0])))
            assert is_pending(net) is (overlap == "forward" and step > 0)
        outcomes.append(digest(net.weights))
    assert outcomes[0] == outcomes[1]


class Backwards(keras.Model):  # type: ignore[misc]
    """Has the layer first that it uses last."""

    def __init__(self) -> None:
        super().__init__()
        self.last = keras.layers.Dense(3)
        self.last.build((None, 3000))
        self.first = keras.layers.Dense(3000)
        self.first.build((None, 6))

    def call(self, x: Any) -> Any:
        return self.last(self.first(x))


@on(TWO_OVER_TCP)
def test_a_layer_waits_for_its_own_variables_alone() -> None:
    """And what is used first is the most urgent from then on."""
    keras.utils.set_random_seed(2)
    net = Backwards()
    compiled(net, ring.DistributedOptimizer("sgd", overlap="forward", groups=4))
    x, y = np.ones((2, 6), "float32"), np.array([0, 1])
    for _ in range(3):
        net.train_step((x, y))
    overlap = net.optimizer._ring_overlap
    priorities = {variable.path: bucket.priority for bucket in overlap._buckets for variable in bucket.variables}
    assert priorities[net.first.kernel.path] > priorities[net.last.kernel.path]
    net.first(x)
    assert not is_pending(net.first)
    assert is_pending(net.last)


@on(TWO_OVER_TCP)
def test_fit_ends_when_its_steps_are_made() -> None:
    net = compiled(model(), ring.DistributedOptimizer("sgd", overlap="forward"))
    net.fit(*ring.shard(data(32)), batch_size=4, verbose=0)
    assert not is_pending(net)


@on(TWO_OVER_TCP)
def test_gradients_that_the_program_makes_may_be_changed_at_once() -> None:
    outcomes = []
    for overlap in ("backward", "forward"):
        net = model()
        optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1), overlap=overlap)
        gradients = [keras.ops.ones(variable.shape) for variable in net.trainable_variables]
        for step in range(3):
            for gradient in gradients:
                gradient.fill_(1.0 + step + ring.rank())
            optimizer.apply(gradients, net.trainable_variables)
            assert is_pending(net) is (overlap == "forward" and step > 0)
        assert int(optimizer.iterations) == 3
        outcomes.append(digest(net.weights))
    assert outcomes[0] == outcomes[1]


@on(TWO_OVER_TCP)
def test_layers_that_stay_a_ranks_own() -> None:
    outcomes = []
    for overlap in ("backward", "forward"):
        net = model()
        optimizer = ring.PartialDistributedOptimizer(
            keras.optimizers.Adam(0.01), local_layers=net.layers[-1], overlap=overlap, groups=2
        )
        compiled(net, optimizer)
        net.fit(*ring.shard(data(64)), batch_size=4, shuffle=False, verbose=0)
        outcomes.append(digest([*net.weights, *optimizer.variables]))
    assert outcomes[0] == outcomes[1]


WHOLE: dict[str, Callable[[], Any]] = {
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=1.0),
    "use_ema": lambda: keras.optimizers.SGD(0.1, use_ema=True),
    "gradient_accumulation_steps": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "a step of Nadam may": lambda: keras.optimizers.Nadam(0.1),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
    "is a function": lambda: keras.optimizers.SGD(lambda: 0.1),
}


@on(TWO_OVER_TCP)
@pytest.mark.parametrize("why", list(WHOLE))
def test_a_step_that_needs_all_gradients_waits_and_says_so_once(why: str, caplog: pytest.LogCaptureFixture) -> None:
    outcomes = []
    for overlap in ("backward", "forward"):
        script = Script(1)
        net = compiled(model(), ring.DistributedOptimizer(WHOLE[why](), overlap=overlap))
        net.fit(*ring.shard(data(64)), batch_size=4, shuffle=False, verbose=0, callbacks=[script])
        assert script.deferred == 0
        outcomes.append(digest(net.weights))
    assert outcomes[0] == outcomes[1]
    assert [why in record.message for record in caplog.records if "overlap" in record.message] == [True]


@on(TWO_OVER_TCP)
def test_an_optimizer_of_the_users_own_waits(caplog: pytest.LogCaptureFixture) -> None:
    class Own(keras.optimizers.SGD):  # type: ignore[misc]
        pass

    net = model()
    optimizer = ring.DistributedOptimizer(Own(0.1), overlap="forward")
    for _ in range(3):
        optimizer.apply([keras.ops.ones(variable.shape) for variable in net.trainable_variables], net.variables)
        assert not is_pending(net)
    assert ["a step of Own may need all gradients" in record.message for record in caplog.records] == [True]


@on(TWO_OVER_TCP)
def test_ranks_need_not_agree_on_which_steps_wait() -> None:
    """One may have a reason of its own: torch.compile has run there, say."""
    outcomes = []
    for overlap in ("backward", "forward"):
        net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.SGD(0.1), overlap=overlap))
        vars(net.optimizer)["_ring_reason"] = "it is rank 1" if ring.rank() else ""
        script = Script(3)
        net.fit(*ring.shard(data(64)), batch_size=4, shuffle=False, verbose=0, callbacks=[script])
        assert (script.deferred > 0) is (overlap == "forward" and ring.rank() == 0)
        outcomes.append(digest(net.weights))
    assert outcomes[0] == outcomes[1]


@on(TWO_OVER_TCP)
def test_words() -> None:
    for what in (ring.Compression.topk(0.1), ring.Compression.powersgd(2)):
        with pytest.raises(ringcore.InvalidArgument, match="begins when all gradients are there; leave out overlap"):
            ring.DistributedOptimizer("sgd", overlap="forward", compression=what)
    with pytest.raises(ringcore.MismatchError, match="overlap"):
        net = compiled(model(), ring.DistributedOptimizer("sgd", overlap="forward" if ring.rank() else "backward"))
        net.fit(*data(16), verbose=0)


@on(TWO_IN_ORDER)
@pytest.mark.parametrize("compression", ["fp16", "bf16", "int8"])
def test_with_a_compression(compression: str) -> None:
    nets = [stepped(overlap, compression=compression) for overlap in ("backward", "forward")]
    assert [is_pending(net) for net in nets] == [False, True]
    assert digest(nets[0].weights) == digest(nets[1].weights)


def steps_without_the_other() -> object:
    import os

    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import numpy as np
    import ringcore_keras as ring
    import torch

    ringcore.init()
    keras.utils.set_random_seed(2)
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3000)])
    net.compile(ring.DistributedOptimizer("sgd", overlap="forward"), "mse")
    batch = np.ones((2, 6), "float32"), np.ones((2, 3000), "float32")
    net.train_step(batch)

    def step_and_read() -> None:
        if ringcore.rank() == 1:
            os._exit(3)
        net.train_step(batch)
        net.get_weights()

    told = caught(step_and_read)
    return [told["type"], told["message"], type(net.layers[0].kernel.value) is torch.nn.Parameter]


def test_that_a_rank_is_lost_is_told_where_a_variable_is_read(tmp_path: Path) -> None:
    with ranks.started(steps_without_the_other, 2, tmp_path) as job:
        outcome = job.wait()[0]
    kind, message, is_itself = outcome.result or ["", outcome.stderr, False]
    assert kind == "PeerLostError", message
    assert "rank 1" in message
    assert is_itself
