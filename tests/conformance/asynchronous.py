"""Optimizers that step by asynchronous sums, in each framework: of gradients that are given, as those of a step.

Each function makes parameters of zeros and what steps them, by SGD of rate 1/2, with the options that it is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from conformance.exchanges import Arrays, fit_gradients, model_of_given_gradients, sum_of_outputs

SHAPES: dict[str, tuple[int, ...]] = {"matrix": (12, 10), "vector": (7,)}
RATE = 0.5


@dataclasses.dataclass(frozen=True)
class Made:
    """What takes part.

    Attributes:
        step: Takes gradients by the names of the parameters.
        weights: Gives copies of the parameters.
        steps: The core's part.
        owner: Has `synchronize` and counts.
        set_rate: Changes this rank's learning rate; None where only a schedule does.
    """

    step: Callable[[Arrays], None]
    weights: Callable[[], Arrays]
    steps: Any
    owner: Any
    set_rate: Callable[[float], None] | None = None


def torch(**options: Any) -> Made:
    import ringcore_torch as ring
    import torch

    params = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
    optimizer = ring.AsyncOptimizer(torch.optim.SGD(params.values(), lr=RATE), params.items(), **options)

    def step(gradients: Arrays) -> None:
        for name, param in params.items():
            param.grad = torch.from_numpy(gradients[name].copy()) if name in gradients else None
        optimizer.step()

    def set_rate(rate: float) -> None:
        optimizer.param_groups[0]["lr"] = rate

    return Made(
        step, lambda: {name: param.detach().numpy().copy() for name, param in params.items()}, optimizer._steps,
        optimizer, set_rate,
    )  # fmt: skip


def keras(**options: Any) -> Made:
    """In eager mode, where the backend has one."""
    import keras
    import ringcore_keras as ring

    variables = {name: keras.Variable(np.zeros(shape, "float32"), name=name) for name, shape in SHAPES.items()}
    optimizer = ring.AsyncOptimizer(keras.optimizers.SGD(RATE), **options)
    optimizer.build(list(variables.values()))

    def step(gradients: Arrays) -> None:
        optimizer.apply([
            keras.ops.convert_to_tensor(gradients[name]) if name in gradients else None for name in variables
        ])  # fmt: skip

    return _of_keras(optimizer, step, variables)


def keras_fit(**options: Any) -> Made:
    """In what the backend compiles for `fit`; JAX, where that cannot be, without compiling."""
    import keras
    import ringcore_keras as ring

    model = model_of_given_gradients(SHAPES)
    optimizer = ring.AsyncOptimizer(keras.optimizers.SGD(RATE), **options)
    model.compile(optimizer, loss=sum_of_outputs, run_eagerly=keras.config.backend() == "jax")
    optimizer.build(model.trainable_variables)
    variables = dict(zip(SHAPES, model.held, strict=True))

    def step(gradients: Arrays) -> None:
        zeros = {name: np.zeros(shape, "float32") for name, shape in SHAPES.items()}
        fit_gradients(model, {**zeros, **gradients})

    return _of_keras(optimizer, step, variables)


def _of_keras(optimizer: Any, step: Callable[[Arrays], None], variables: Mapping[str, Any]) -> Made:
    import keras

    def weights() -> Arrays:
        return {name: np.array(keras.ops.convert_to_numpy(variable)) for name, variable in variables.items()}

    def set_rate(rate: float) -> None:
        optimizer.learning_rate = rate

    return Made(step, weights, optimizer._ring_steps, optimizer, set_rate)


def tensorflow(*, graph: bool = False, **options: Any) -> Made:
    import ringcore_tensorflow as ring
    import tensorflow as tf

    variables = {name: tf.Variable(tf.zeros(shape), name=name) for name, shape in SHAPES.items()}
    optimizer = ring.AsyncOptimizer(tf.keras.optimizers.SGD(RATE), variables.values(), **options)

    def apply(gradients: dict[str, Any]) -> None:
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(variables[name] * gradient) for name, gradient in gradients.items())
        found = tape.gradient(loss, list(variables.values()))
        optimizer.apply_gradients(zip(found, variables.values(), strict=True))

    run = tf.function(apply) if graph else apply

    def step(gradients: Arrays) -> None:
        try:
            run({name: tf.constant(gradient) for name, gradient in gradients.items()})
        except tf.errors.OpError as error:
            raise ring.as_ringcore_error(error) or error from None

    def set_rate(rate: float) -> None:
        optimizer.learning_rate = rate

    return Made(
        step, lambda: {name: variable.numpy().copy() for name, variable in variables.items()}, optimizer._steps,
        optimizer, set_rate,
    )  # fmt: skip


def tensorflow_function(**options: Any) -> Made:
    """With one thread for all that is under way."""
    import tensorflow as tf

    if tf.config.threading.get_inter_op_parallelism_threads() != 1:
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.threading.set_intra_op_parallelism_threads(1)
    return tensorflow(graph=True, **options)


def jax(**options: Any) -> Made:
    import jax.numpy as jnp
    import optax
    import ringcore_jax as ring

    params = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
    optimizer = ring.AsyncOptimizer(optax.sgd(RATE), params, **options)

    def step(gradients: Arrays) -> None:
        optimizer.step({name: jnp.array(gradients.get(name, np.zeros(shape))) for name, shape in SHAPES.items()})

    return Made(
        step, lambda: {name: np.array(param) for name, param in optimizer.params.items()}, optimizer._steps, optimizer
    )


def _parameters_of_mxnet() -> Any:
    import mxnet as mx

    params = mx.gluon.ParameterDict()
    for name, shape in SHAPES.items():
        params.get(name, shape=shape, init="zeros")
    params.initialize()
    return params


def mxnet(**options: Any) -> Made:
    import ringcore_mxnet as ring

    params = _parameters_of_mxnet()
    trainer = ring.AsyncTrainer(params, "sgd", {"learning_rate": RATE}, **options)

    def step(gradients: Arrays) -> None:
        for name, gradient in gradients.items():
            params[name].grad()[:] = 4 * gradient
            params[name].data()._fresh_grad = True
        trainer.step(4, ignore_stale_grad=True)

    return Made(
        step, lambda: {name: params[name].data().asnumpy() for name in SHAPES}, trainer._held().steps, trainer,
        trainer.set_learning_rate,
    )  # fmt: skip


def mxnet_store(*, staleness: int, threshold: int | None = None, compression: str = "none", **options: Any) -> Made:
    """What Gluon makes of the store: each key is pushed and pulled after the other."""
    import mxnet as mx
    import ringcore_mxnet as ring

    params = _parameters_of_mxnet()
    params.get("fixed", shape=(2,), init="ones", grad_req="null").initialize()
    store = ring.AsyncRing(staleness, ring.size() if threshold is None else threshold)
    trainer = mx.gluon.Trainer(
        params, "sgd", {"learning_rate": RATE}, kvstore=store, compression_params={"type": compression}
    )
    trainer._init_kvstore()
    trainer._init_params()

    def step(gradients: Arrays) -> None:
        for name, gradient in gradients.items():
            params[name].grad()[:] = gradient
            params[name].data()._fresh_grad = True
        trainer.step(1, ignore_stale_grad=True)

    def weights() -> Arrays:
        for name in SHAPES:
            store.pull(trainer._param2idx[name], params[name].list_data())
        return {name: params[name].data().asnumpy() for name in SHAPES}

    class Owner:
        synchronize = store.barrier
        dropped = property(lambda _: store._held().steps.dropped)
        oldest = property(lambda _: store._held().steps.oldest)
        updates = property(lambda _: store._held().steps.updates)

    return Made(step, weights, store._held().steps, Owner(), trainer.set_learning_rate)


_KERAS: dict[str, tuple[str, ...]] = {
    "torch": ("ringcore_keras", "keras", "ringcore_torch", "torch"),
    "tensorflow": ("ringcore_keras", "ringcore_tensorflow", "tensorflow"),
    "jax": ("ringcore_keras", "keras", "ringcore_jax", "jax"),
}
# What each needs, and the variables of its environment.
STEPPING: dict[str, tuple[Callable[..., Made], tuple[str, ...], dict[str, str]]] = {
    "torch": (torch, ("ringcore_torch", "torch"), {}),
    **{f"keras_{name}": (keras, modules, {"KERAS_BACKEND": name}) for name, modules in _KERAS.items()},
    **{f"keras_fit_{name}": (keras_fit, modules, {"KERAS_BACKEND": name}) for name, modules in _KERAS.items()},
    "tensorflow": (tensorflow, ("ringcore_tensorflow", "tensorflow"), {}),
    "tensorflow_function": (tensorflow_function, ("ringcore_tensorflow", "tensorflow"), {}),
    "jax": (jax, ("ringcore_jax", "optax"), {}),
    "mxnet": (mxnet, ("ringcore_mxnet", "mxnet"), {}),
    "mxnet_store": (mxnet_store, ("ringcore_mxnet", "mxnet"), {}),
}
