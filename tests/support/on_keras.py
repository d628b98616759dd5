"""What tests of the Keras adapter run on and train; KERAS_BACKEND says on what, else the first that is installed."""

from __future__ import annotations

import importlib.util
import os
import warnings
from typing import Any

from support.on_ranks import Start

INSTALLED = [
    name
    for name in ("tensorflow", "jax", "torch")
    if importlib.util.find_spec(name) and importlib.util.find_spec(f"ringcore_{name}")
]
os.environ.setdefault("KERAS_BACKEND", INSTALLED[0])
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

with warnings.catch_warnings():  # what the backends import is not ours
    warnings.simplefilter("ignore")
    import keras
    import numpy as np
    import ringcore_keras as ring

TWO = [Start(2, variables=(("KERAS_BACKEND", name),)) for name in INSTALLED]
FOUR = [Start(4, variables=(("KERAS_BACKEND", name),)) for name in INSTALLED]
BATCH = 8  # of each rank
# Twenty steps of float32 sums in another order; gradients and weights are about 1.
ROUNDING = 5e-6


def data(rows: int) -> tuple[Any, Any]:
    """Inputs and their classes, the same on all ranks."""
    generator = np.random.default_rng(1)
    x = generator.standard_normal((rows, 6)).astype("float32")
    y = (x @ generator.standard_normal((6, 3))).argmax(1)
    return x, y


def model() -> Any:
    """A model for `data`, the same on all ranks."""
    keras.utils.set_random_seed(2)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)])


def compiled(net: Any, optimizer: Any, **options: Any) -> Any:
    """The model, ready to be trained to tell classes."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"], **options)
    return net


def steps_at_once(steps: int) -> dict[str, int]:
    """The option of `compile`, where Keras does not refuse it."""
    return {"steps_per_execution": steps} if keras.config.backend() != "torch" else {}


def arrays(variables: Any) -> list[Any]:
    """Copies of the values."""
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def digest(variables: Any) -> list[str]:
    """Their bits."""
    return [value.tobytes().hex() for value in arrays(variables)]


def difference(one: Any, other: Any) -> float:
    """The largest between the weights of two models."""
    pairs = zip(arrays(one.weights), arrays(other.weights), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def same_everywhere(value: Any) -> bool:
    """Whether all ranks have the same."""
    values = ring.allgather_object(value)
    return all(other == values[0] for other in values)
