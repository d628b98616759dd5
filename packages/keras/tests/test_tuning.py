"""Ways to send gradients, tried in the first steps of `fit`, on each backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.on_keras import BATCH, INSTALLED, compiled, data, digest, keras, np, ring, steps_at_once
from support.on_ranks import Start, on
from support.trials import check_trials

TWO_OVER_TCP = [Start(2, "tcp", variables=(("KERAS_BACKEND", name),)) for name in INSTALLED]
LAYERS, WIDTH = 12, 16


def trainer(options: dict[str, Any], passes: int) -> Any:
    def train(steps: int) -> list[str]:
        keras.utils.clear_session()
        keras.utils.set_random_seed(2)
        hidden = [keras.layers.Dense(WIDTH, activation="tanh", use_bias=False) for _ in range(LAYERS)]
        net = keras.Sequential([keras.Input((6,)), *hidden, keras.layers.Dense(3, use_bias=False)])
        wrapped = ring.DistributedOptimizer(keras.optimizers.SGD(0.01), backward_passes_per_step=passes)
        rows = BATCH * steps * passes
        x, y = data(rows * ring.size())
        mine = slice(ring.rank() * rows, (ring.rank() + 1) * rows)
        compiled(net, wrapped, **options).fit(
            np.ascontiguousarray(x[mine]), np.ascontiguousarray(y[mine]), batch_size=BATCH, verbose=0, shuffle=False
        )
        return digest(net.weights)

    return train


@on(*TWO_OVER_TCP)
@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, 1),
        pytest.param(steps_at_once(5), 1, marks=pytest.mark.long),
        pytest.param({}, 2, marks=pytest.mark.long),
        pytest.param({"run_eagerly": True}, 1, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_ways_are_tried(options: dict[str, Any], passes: int, shared_folder: Path) -> None:
    if options.get("run_eagerly") and keras.config.backend() == "torch":
        pytest.skip("it always does")
    # On JAX one operation is under way at a time, and outside of a graph on TensorFlow.
    several = keras.config.backend() == "torch" or (
        keras.config.backend() == "tensorflow" and "run_eagerly" not in options
    )
    ways = 3 + 2 * several
    quickest = "buckets of 1000 bytes, at once" if several else "buckets of 1000 bytes"
    check_trials(trainer(options, passes), shared_folder, quickest, ways=ways)
