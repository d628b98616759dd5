"""What goes wrong with Keras: misuse, a rank that is lost; and what must not change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import ringcore
import ringcore_keras as ring
from support import ranks
from support.on_keras import INSTALLED, TWO, compiled, data, digest, model, same_everywhere
from support.on_ranks import on
from support.rank import caught


@on(*TWO)
def test_options_that_cannot_be() -> None:
    wrapped = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(Exception, match="wrap it once"):
        ring.DistributedOptimizer(wrapped)
    with pytest.raises(Exception, match="optimizer"):
        ring.DistributedOptimizer(3)
    with pytest.raises(Exception, match="op=Average or op=Sum, not MAX"):
        ring.DistributedOptimizer("sgd", op=ring.Max)
    with pytest.raises(Exception, match="not 'zip'"):
        ring.DistributedOptimizer("sgd", compression="zip")
    with pytest.raises(Exception, match="at least 1"):
        ring.DistributedOptimizer("sgd", backward_passes_per_step=0)
    forward = r"on \w+: there a step of `fit` is one program.* leave overlap out, or set KERAS_BACKEND=torch"
    for make in (ring.DistributedOptimizer, ring.PartialDistributedOptimizer):
        if keras.config.backend() != "torch":
            with pytest.raises(ringcore.InvalidArgument, match=forward):
                make("sgd", overlap="forward")
        with pytest.raises(ringcore.InvalidArgument, match=r"overlap is .backward. or .forward., not 'sideways'"):
            make("sgd", overlap="sideways")
    ring.DistributedOptimizer("sgd", overlap="backward")


@on(*TWO)
def test_data_that_cannot_be_shared() -> None:
    with pytest.raises(Exception, match="cannot be shared by 2 ranks"):
        ring.shard(np.zeros(ring.size() - 1))
    with pytest.raises(Exception, match=r"lengths \[8, 9\]"):
        ring.shard((np.zeros(8), np.zeros(9)))
    with pytest.raises(Exception, match="not 'lose'"):
        ring.shard(np.zeros(8), remainder="lose")


@on(*TWO)
def test_callbacks_that_do_not_fit() -> None:
    schedule = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9))
    net = compiled(model(), ring.DistributedOptimizer(schedule))
    x, y = data(16)
    with pytest.raises(Exception, match="the optimizer has a schedule"):
        net.fit(x, y, verbose=0, callbacks=[ring.callbacks.LearningRateWarmupCallback(0.1)])


@on(*TWO)
def test_a_forgotten_broadcast_is_told_when_fit_begins() -> None:
    x, y = data(16)

    def fit(*, callbacks: list[keras.callbacks.Callback], name: str, **options: bool) -> bool:
        keras.utils.set_random_seed(ring.rank())
        net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16), keras.layers.Dense(3)])
        compiled(net, ring.DistributedOptimizer(keras.optimizers.SGD(0.1), name=name, **options))
        for _ in range(2):
            net.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks)
        return same_everywhere(digest(net.trainable_variables))

    with pytest.raises(ringcore.MismatchError, match=r"different weights.*BroadcastGlobalVariablesCallback\(0\)"):
        fit(callbacks=[], name="forgotten")
    assert fit(callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(0)], name="callback")
    assert fit(callbacks=[], name="option", broadcast=True)
    assert not fit(callbacks=[], name="off", check_weights=False)


if "tensorflow" in INSTALLED:

    @on(*TWO)
    def test_rows_of_ranks_that_end_together() -> None:
        rows = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(5, 3)])
        compiled(rows, ring.DistributedOptimizer("sgd"))
        zeros = np.zeros((8, 2), int)
        with pytest.raises(Exception, match="sparse_as_dense=True"):
            rows.fit(zeros, zeros, verbose=0, callbacks=[ring.callbacks.EndTogetherCallback()])


@on(*TWO)
def test_models_that_differ_between_the_ranks() -> None:
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3 + ring.rank())])
    compiled(net, ring.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    x, y = data(16)
    with pytest.raises(Exception, match="kernel") as error:
        net.fit(x, y * 0, verbose=0, callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert "MismatchError" in f"{type(error.value).__name__}: {error.value}"


@on(*TWO)
def test_xla_is_not_chosen_where_it_has_no_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `jit_compile="auto"` becomes where Keras sees a GPU."""
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        gpu = tf.config.PhysicalDevice(name="/physical_device:GPU:0", device_type="GPU")
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [gpu])
    net = compiled(model(), ring.DistributedOptimizer("sgd"))
    assert bool(net.jit_compile) is (keras.config.backend() == "jax")


def loses_a_rank_in_fit() -> dict:
    """The other gets the typed error out of fit, and its process can go on."""
    from support.on_keras import BATCH, compiled, data, keras, model, ring

    class Killed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if ring.rank() == 1 and batch == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    ring.init()
    net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.Adam(0.001)))
    x, y = data(50 * BATCH)
    begin = ring.callbacks.BroadcastGlobalVariablesCallback(0)
    error = caught(net.fit, x, y, batch_size=BATCH, epochs=100, verbose=0, callbacks=[begin, Killed()])
    # The process is usable: alone now, with the same compiled functions.
    ring.shutdown()
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    ring.init()
    if keras.config.backend() == "jax":  # whose compiled steps take the weights along when they fail
        net = compiled(model(), ring.DistributedOptimizer(keras.optimizers.Adam(0.001)))
    before = int(net.optimizer.iterations)
    net.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[begin])
    return {"error": error, "size": ring.size(), "went on": int(net.optimizer.iterations) - before}


@pytest.mark.parametrize("backend", INSTALLED)
def test_a_killed_rank_is_a_typed_error_out_of_fit(backend: str, tmp_path: Path) -> None:
    with ranks.started(loses_a_rank_in_fit, 2, tmp_path, env={"KERAS_BACKEND": backend}) as job:
        survivor, _ = job.wait(limit_s=300)
    assert survivor.exit_code == 0, survivor.stderr
    assert survivor.result["error"]["type"] == "PeerLostError", survivor.result
    assert "rank 1" in survivor.result["error"]["message"]
    assert survivor.result["size"] == 1
    assert survivor.result["went on"] == 50


NOTHING_WRAPPED = """
import keras
methods = lambda: (keras.Model.fit, keras.optimizers.LossScaleOptimizer.check_finite)
before = methods()
import ringcore_keras as ring
ring.init()
assert methods() == before, "Keras has changed though nothing is distributed"
ring.DistributedOptimizer(keras.optimizers.SGD())
assert all(a != b for a, b in zip(methods(), before))
changed = methods()
ring.DistributedOptimizer(keras.optimizers.SGD())
assert methods() == changed, "and once more"
"""


@pytest.mark.parametrize("backend", INSTALLED)
def test_keras_is_changed_by_the_first_wrapped_optimizer_and_not_by_an_import(backend: str) -> None:
    command = [sys.executable, "-c", NOTHING_WRAPPED]
    environ = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ)
    assert done.returncode == 0, done.stderr
