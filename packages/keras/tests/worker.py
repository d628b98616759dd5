"""Cases for test_keras.py: each runs on every rank, with the backend that KERAS_BACKEND names."""

from __future__ import annotations

import copy
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import ringcore
import ringcore_keras as ring

CASES: dict[str, Callable[..., dict[str, Any]]] = {}
BATCH = 8  # of each rank


def case(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    CASES[function.__name__] = function
    return function


def data(rows: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(1)
    x = generator.standard_normal((rows, 6)).astype("float32")
    y = (x @ generator.standard_normal((6, 3))).argmax(1)
    return x, y


def model(**layer: Any) -> Any:
    keras.utils.set_random_seed(2)
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(16, activation="tanh", **layer), keras.layers.Dense(3, **layer)]
    )


def weights(net: Any) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(weight)) for weight in net.weights]


def digest(net: Any) -> list[str]:
    return [weight.tobytes().hex() for weight in weights(net)]


def compiled(net: Any, optimizer: Any, **options: Any) -> Any:
    net.compile(
        optimizer=optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"],
        **options,
    )  # fmt: skip
    return net


def same_everywhere(value: Any) -> bool:
    values = ring.allgather_object(value)
    return all(other == values[0] for other in values)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 5, 0.8)),
}


def trained(optimizer: Any, x: Any, y: Any, batch: int, **fit: Any) -> Any:
    net = compiled(model(), optimizer, **{k: fit.pop(k) for k in ("run_eagerly", "steps_per_execution") if k in fit})
    net.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0, **fit)
    return net


def difference(one: Any, other: Any) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(weights(one), weights(other), strict=True))


@case
def equality(kind: str, variant: str) -> dict[str, Any]:
    """Two epochs of fit on n ranks are two epochs on one with the n-fold batch."""
    x, y = data(10 * BATCH * ring.size())
    alone = trained(OPTIMIZERS[kind](), x, y, BATCH * ring.size())
    options: dict[str, Any] = {}
    if variant == "eager":
        options["run_eagerly"] = True
    if variant == "steps" and keras.config.backend() != "torch":  # Keras refuses it there
        options["steps_per_execution"] = 5
    optimizer = OPTIMIZERS[kind]()
    wrapped = ring.DistributedOptimizer(optimizer)
    mine, labels = ring.shard((x, y))
    together = trained(
        wrapped, mine, labels, BATCH, callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(0)], **options
    )
    return {
        "difference": difference(alone, together),
        "moved": difference(model(), together),
        "same": same_everywhere(digest(together)),
        "class": isinstance(wrapped, type(optimizer)) and type(wrapped).__name__ == type(optimizer).__name__,
        "iterations": int(together.optimizer.iterations) == int(alone.optimizer.iterations),
    }


@case
def accumulation() -> dict[str, Any]:
    x, y = data(8 * BATCH * ring.size())
    alone = trained(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), x, y, BATCH * ring.size())
    wrapped = ring.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    together = trained(wrapped, *ring.shard((x, y)), BATCH)
    return {"difference": difference(alone, together), "same": same_everywhere(digest(together))}


@case
def broadcast(steps: str) -> dict[str, Any]:
    """Ranks that begin differently go on alike, with the optimizer's state of the root as well."""
    keras.utils.set_random_seed(ring.rank())
    if ring.rank() == 1:
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])  # one rank has made one model more
    net = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(3)])  # no input shape: built in fit
    wrapped = ring.DistributedOptimizer(keras.optimizers.Adam(0.01 * (ring.rank() + 1)))
    options = {"steps_per_execution": int(steps)} if keras.config.backend() != "torch" else {}
    compiled(net, wrapped, **options)
    x, y = ring.shard(data(64))
    net.fit(x, y, batch_size=8, verbose=0, callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(1)])
    return {
        "same": same_everywhere(digest(net)),
        "rate": abs(float(net.optimizer.learning_rate) - 0.02) < 1e-8,
        "state": same_everywhere(
            [np.asarray(keras.ops.convert_to_numpy(v)).tobytes().hex() for v in wrapped.variables]
        ),
    }


@case
def metrics() -> dict[str, Any]:
    """With unequal numbers of samples the averaged metrics are those of one process."""
    x, y = data(60)
    val_x, val_y = data(44)
    rows = slice(0, 40) if ring.rank() == 0 else slice(40, 60)
    val_rows = slice(0, 12) if ring.rank() == 0 else slice(12, 44)
    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.SGD(0.0)))
    expected = net.evaluate(x, y, batch_size=20, verbose=0, return_dict=True)
    expected_val = net.evaluate(val_x, val_y, batch_size=4, verbose=0, return_dict=True)
    # As many batches on both ranks.
    seen = net.fit(
        x[rows], y[rows], batch_size=20 if ring.rank() == 0 else 10, verbose=0, epochs=2, shuffle=False,
        validation_data=(val_x[val_rows], val_y[val_rows]), callbacks=[ring.callbacks.MetricAverageCallback()],
    ).history  # fmt: skip
    return {
        "train": max(abs(seen[name][1] - expected[name]) for name in expected),
        "validation": max(abs(seen[f"val_{name}"][1] - expected_val[name]) for name in expected_val),
        "same": same_everywhere(seen),
    }


@case
def own_step() -> dict[str, Any]:
    """A train_step of the user's, with a metric that Keras knows nothing of."""

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.seen = keras.metrics.Mean("seen")

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, *args: Any) -> Any:
            if keras.config.backend() == "jax":
                state, _ = args
                trained, others, slots, metrics = state
                index = [id(v) for v in self.metrics_variables]
                new = self.seen.stateless_update_state(
                    [metrics[index.index(id(v))] for v in self.seen.variables], 1.0 + ring.rank()
                )
                metrics = list(metrics)
                for variable, value in zip(self.seen.variables, new, strict=True):
                    metrics[index.index(id(variable))] = value
                return {"seen": self.seen.stateless_result(new)}, (trained, others, slots, metrics)
            self.seen.update_state(1.0 + ring.rank())
            return {"seen": self.seen.result()}

    net = Net()
    net.compile(optimizer=ring.DistributedOptimizer("sgd"), loss="mse")
    x, y = data(16)
    seen = net.fit(x, y, batch_size=8, verbose=0, callbacks=[ring.callbacks.MetricAverageCallback()]).history["seen"][0]
    return {"difference": abs(seen - (1 + ring.size()) / 2), "value": seen}


@case
def rates() -> dict[str, Any]:
    """Warm-up, then a schedule; velocities follow the rate."""
    x, y = ring.shard(data(10 * BATCH * ring.size()))
    seen: list[float] = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(float(self.model.optimizer.learning_rate))

    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.SGD(0.4, momentum=0.9)))
    callbacks = [
        ring.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2),
        ring.callbacks.LearningRateScheduleCallback(0.4, lambda epoch: 0.1, start_epoch=3),
        Note(),
    ]
    history = net.fit(x, y, batch_size=BATCH, epochs=4, verbose=0, callbacks=callbacks).history
    n, steps = ring.size(), 10
    warm = [0.4 / n * ((i + 1) / (2 * steps) * (n - 1) + 1) for i in range(2 * steps)]
    expected = warm + [0.4] * steps + [0.04] * steps
    # With momentum 0 the weights' way does not depend on the correction; what it does to the velocity is seen directly.
    velocity = [np.array(keras.ops.convert_to_numpy(v)) for v in net.optimizer.momentums]
    ring.callbacks._set_rate(net, 0.08, correct_momentum=True)
    doubled = [np.array(keras.ops.convert_to_numpy(v)) for v in net.optimizer.momentums]
    return {
        "rates": float(np.abs(np.array(seen) - np.array(expected)).max()),
        "logged": abs(history["lr"][-1] - 0.04) < 1e-7,
        "velocity": max(float(np.abs(b - 2 * a).max()) for a, b in zip(velocity, doubled, strict=True)),
        "same": same_everywhere(digest(net)),
        "after several steps at once": abs(_rate_after_steps_at_once() - 0.4),
    }


def _rate_after_steps_at_once() -> float:
    options = {"steps_per_execution": 5} if keras.config.backend() != "torch" else {}
    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.SGD(0.4)), **options)
    x, y = ring.shard(data(10 * BATCH * ring.size()))
    warmup = ring.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2)
    net.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[warmup])
    return float(net.optimizer.learning_rate)


@case
def ending() -> dict[str, Any]:
    """Ranks with other numbers of batches, and one that stops."""
    rows = 40 if ring.rank() == 0 else 24
    x, y = data(rows)
    stopped: list[int] = []

    class StopOnRank1(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            stopped.append(epoch)
            if ring.rank() == 1 and epoch == 1:
                self.model.stop_training = True

    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    net.fit(
        x, y, batch_size=BATCH, epochs=5, verbose=0, validation_data=(x[:8], y[:8]),
        callbacks=[ring.callbacks.MetricAverageCallback(), StopOnRank1(), ring.callbacks.EndTogetherCallback()],
    )  # fmt: skip
    return {"epochs": stopped, "same": same_everywhere(digest(net))}


@case
def saving() -> dict[str, Any]:
    """A file of a wrapped optimizer is that of the optimizer; training goes on from it."""
    saved = folder / "saved"
    saved.mkdir(exist_ok=True)
    path = saved / "model.keras"
    x, y = ring.shard(data(4 * BATCH * ring.size()))
    best = saved / "best.keras"
    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    net.fit(
        x, y, batch_size=BATCH, verbose=0, shuffle=False,
        callbacks=[ring.callbacks.BestModelCheckpoint(best, monitor="loss")],
    )  # fmt: skip
    if ring.rank() == 0:
        net.save(path)
    ring.barrier()
    plain = keras.saving.load_model(path)
    again = ring.load_model(path)
    config = ring.DistributedOptimizer(keras.optimizers.Adam(0.03, beta_1=0.8)).get_config()
    for trained_on in (net, again):
        trained_on.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    return {
        "plain": type(plain.optimizer).__mro__[0].__name__ == "Adam" and not ring.is_distributed(plain.optimizer),
        "wrapped": ring.is_distributed(again.optimizer) and int(plain.optimizer.iterations) == 4,
        "goes on": difference(net, again),
        "config": keras.optimizers.Adam.from_config(config).beta_1 == 0.8,
        "own config": type(type(net.optimizer).from_config(config)) is type(keras.optimizers.Adam()),
        "copy": ring.is_distributed(copy.deepcopy(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)))),
        "best": best.exists(),
        "writers": ring.allgather_object(len(list(saved.iterdir()))) == [2] * ring.size(),
    }


@case
def mixed() -> dict[str, Any]:
    """A gradient that is not finite on one rank: no rank steps, and all go on alike."""
    keras.config.set_dtype_policy("mixed_float16")
    x, y = ring.shard(data(6 * BATCH * ring.size()))
    if ring.rank() == 1:
        x = x.copy()
        x[2 * BATCH] = np.inf
    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    net.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    keras.config.set_dtype_policy("float32")
    inner = net.optimizer.inner_optimizer
    finite = all(np.isfinite(weight).all() for weight in weights(net))
    return {"steps": int(inner.iterations), "finite": finite, "same": same_everywhere(digest(net))}


@case
def local() -> dict[str, Any]:
    """Layers that stay a rank's own."""
    net = model()
    wrapped = ring.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=net.layers[0])
    compiled(net, wrapped)
    x, y = ring.shard(data(4 * BATCH * ring.size()))
    net.fit(x, y, batch_size=BATCH, verbose=0)
    kernels = [weight.tobytes().hex() for weight in weights(net)]
    found = {"own": not same_everywhere(kernels[0]), "shared": same_everywhere(kernels[3])}
    # An embedding that is a rank's own; and ranks with other numbers of batches, whose local layers stay theirs.
    rows = keras.Sequential(
        [keras.Input((5,)), keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    wrapped = ring.PartialDistributedOptimizer(
        keras.optimizers.Adam(0.1), local_layers=rows.layers[0], sparse_as_dense=True
    )
    compiled(rows, wrapped)
    count = 40 if ring.rank() == 0 else 24
    indices = np.random.default_rng(ring.rank()).integers(0, 9, (count, 5))
    rows.fit(
        indices, indices[:, 0] % 3, batch_size=BATCH, verbose=0,
        callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(0), ring.callbacks.EndTogetherCallback()],
    )  # fmt: skip
    kernels = [weight.tobytes().hex() for weight in weights(rows)]
    return {**found, "rows": not same_everywhere(kernels[0]), "ended": same_everywhere(kernels[1])}


@case
def batch_norm() -> dict[str, Any]:
    """Statistics of all ranks' batches: the way of one process with all of them."""

    def normalised(layer: Any) -> Any:
        keras.utils.set_random_seed(3)
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(5), layer, keras.layers.Dense(3)])

    x, y = data(6 * BATCH * ring.size())
    alone = compiled(normalised(keras.layers.BatchNormalization()), keras.optimizers.SGD(0.1))
    alone.fit(x, y, batch_size=BATCH * ring.size(), shuffle=False, verbose=0)
    together = compiled(normalised(ring.SyncBatchNormalization()), ring.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    together.fit(*ring.shard((x, y)), batch_size=BATCH, shuffle=False, verbose=0)
    return {"difference": difference(alone, together), "same": same_everywhere(digest(together))}


@case
def embedding() -> dict[str, Any]:
    """Gradients of embeddings: rows on TensorFlow, dense elsewhere."""

    def net() -> Any:
        keras.utils.set_random_seed(4)
        return keras.Sequential(
            [keras.Input((5,)), keras.layers.Embedding(40, 4), keras.layers.Flatten(), keras.layers.Dense(3)]
        )

    generator = np.random.default_rng(5)
    x = generator.integers(0, 40, (4 * BATCH * ring.size(), 5))
    y = generator.integers(0, 3, len(x))
    results: dict[str, Any] = {}
    alone = compiled(net(), keras.optimizers.SGD(0.5))
    alone.fit(x, y, batch_size=BATCH * ring.size(), shuffle=False, verbose=0)
    for name, options in {"rows": {}, "dense": {"sparse_as_dense": True}}.items():
        together = compiled(net(), ring.DistributedOptimizer(keras.optimizers.SGD(0.5), **options))
        together.fit(*ring.shard((x, y)), batch_size=BATCH, shuffle=False, verbose=0)
        results[name] = difference(alone, together)
        results[f"{name} same"] = same_everywhere(digest(together))
    return results


@case
def two_models() -> dict[str, Any]:
    """One after the other in one process, many steps."""
    digests = []
    x, y = ring.shard(data(50 * BATCH * ring.size()))
    for _ in range(2):
        net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.Adam(0.001)))
        net.fit(x, y, batch_size=BATCH, epochs=10, shuffle=False, verbose=0)
        digests.append(digest(net))
    return {"steps": int(net.optimizer.iterations), "same": same_everywhere(digests), "twice": digests[0] == digests[1]}


@case
def lost() -> dict[str, Any]:
    """A rank is killed in fit: the others get the typed error out of fit, and the process can go on."""
    import signal
    import time

    class Killed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if ring.rank() == 1 and batch == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.Adam(0.001)))
    x, y = data(50 * BATCH)
    callbacks = [ring.callbacks.BroadcastGlobalVariablesCallback(0), Killed()]
    begin = time.monotonic()
    try:
        net.fit(x, y, batch_size=BATCH, epochs=100, verbose=0, callbacks=callbacks)
        error: Exception | None = None
    except Exception as raised:
        error = raised
    seconds = time.monotonic() - begin
    # The process is usable: alone now, with the same compiled functions.
    ring.shutdown()
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    ring.init()
    if keras.config.backend() == "jax":  # whose compiled steps take the weights along when they fail
        net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.Adam(0.001)))
    before = int(net.optimizer.iterations)
    net.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(0)])
    return {
        "type": type(error).__name__, "text": str(error), "seconds": seconds, "size": ring.size(),
        "went on": int(net.optimizer.iterations) - before,
    }  # fmt: skip


@case
def mistakes() -> dict[str, Any]:
    found: dict[str, str] = {}

    def attempt(what: str, function: Callable[[], Any]) -> None:
        try:
            function()
            found[what] = ""
        except Exception as error:
            found[what] = f"{type(error).__name__}: {error}"

    wrapped = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    attempt("twice", lambda: ring.DistributedOptimizer(wrapped))
    attempt("no optimizer", lambda: ring.DistributedOptimizer(3))
    attempt("op", lambda: ring.DistributedOptimizer("sgd", op=ring.Max))
    attempt("compression", lambda: ring.DistributedOptimizer("sgd", compression="zip"))
    attempt("passes", lambda: ring.DistributedOptimizer("sgd", backward_passes_per_step=0))
    attempt("too few", lambda: ring.shard(np.zeros(ring.size() - 1)))
    attempt("lengths", lambda: ring.shard((np.zeros(8), np.zeros(9))))
    attempt("remainder", lambda: ring.shard(np.zeros(8), remainder="lose"))
    schedule = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9))
    net = compiled(model(), ring.DistributedOptimizer(schedule))
    x, y = data(16)
    warmup = ring.callbacks.LearningRateWarmupCallback(0.1)
    attempt("schedule", lambda: net.fit(x, y, verbose=0, callbacks=[warmup]))
    rows = compiled(
        keras.Sequential([keras.Input((2,)), keras.layers.Embedding(5, 3)]), ring.DistributedOptimizer("sgd")
    )
    together = ring.callbacks.EndTogetherCallback()
    attempt("rows", lambda: rows.fit(np.zeros((8, 2), int), np.zeros((8, 2), int), verbose=0, callbacks=[together]))
    # Ranks whose models differ.
    other = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3 + ring.rank())])
    compiled(other, ring.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    begin = ring.callbacks.BroadcastGlobalVariablesCallback(0)
    attempt("models", lambda: other.fit(x, y * 0, verbose=0, callbacks=[begin]))
    return found


@case
def beside_a_gpu() -> dict[str, Any]:
    """What `jit_compile="auto"` becomes where Keras sees a GPU."""
    net = model()
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        real = tf.config.list_physical_devices
        gpu = tf.config.PhysicalDevice(name="/physical_device:GPU:0", device_type="GPU")
        tf.config.list_physical_devices = lambda *_: [gpu]
        compiled(net, ring.DistributedOptimizer("sgd"))
        plain = compiled(model(), "sgd").jit_compile
        tf.config.list_physical_devices = real
        return {"jit_compile": net.jit_compile, "plain": plain}
    return {"jit_compile": bool(compiled(net, ring.DistributedOptimizer("sgd")).jit_compile)}


@case
def kinds_of_data() -> dict[str, Any]:
    """Shares of every kind of data, and what becomes of the remainder."""
    rows = np.arange(4 * ring.size() + 1)
    expected = {"drop": [*rows[:-1]], "repeat": sorted([*rows, *range(ring.size() - 1)]), "keep": [*rows]}
    results: dict[str, Any] = {}
    for remainder, wanted in expected.items():
        shares = ring.allgather_object(ring.shard(rows, remainder=remainder).tolist())
        lengths = len({len(share) for share in shares})
        results[remainder] = sorted(itertools.chain(*shares)) == wanted and lengths == (remainder == "keep") + 1

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            x, y = data(64)
            return x[index * 8 : index * 8 + 8], y[index * 8 : index * 8 + 8]

    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    net.fit(ring.shard(Batches()), verbose=0, callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(0)])
    results["PyDataset"] = same_everywhere(digest(net)) and int(net.optimizer.iterations) == 8 // ring.size()
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        for name, source in {
            "tf.data": tf.data.Dataset.from_tensor_slices(data(65)),
            "tf.data of unknown length": tf.data.Dataset.from_tensor_slices(data(65)).filter(lambda *_: True),
        }.items():
            share = ring.shard(source)
            counted = ring.allgather_object(len(list(share)))
            net.fit(share.batch(8), verbose=0)
            results[name] = counted == [65 // ring.size()] * ring.size() and same_everywhere(digest(net))
    elif keras.config.backend() == "torch":
        import torch

        x, y = data(65)
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=8, shuffle=True
        )
        share = ring.shard(loader)
        net.fit(share, verbose=0)
        results["DataLoader"] = len(share.dataset) == 65 // ring.size() and same_everywhere(digest(net))
    return results


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    ring.init()
    rank = ringcore.rank()
    for call in sys.argv[2:]:
        name, *arguments = call.split(",")
        keras.utils.clear_session()
        (folder / f"{call}.{rank}.json").write_text(json.dumps(CASES[name](*arguments)))
