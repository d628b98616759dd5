"""Averages by an `adapter.Exchange`, in each framework: of gradients that are given, as those of a step.

Each function makes parameters of zeros and whoever trains them, with the options that it is given, and returns the
names that gradients have there, what takes a step, and the exchange. A step takes gradients and gives their averages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

# A matrix that every exchange shrinks, one of large values beside it, and a vector that all but one leave whole.
SHAPES: dict[str, tuple[int, ...]] = {"matrix": (120, 100), "tensor": (20, 30, 16), "vector": (7,)}

Arrays = dict[str, np.ndarray]
Step = Callable[[Arrays], Arrays]
Made = tuple[dict[str, str], Step, Any]


def torch(**options: Any) -> Made:
    import ringcore_torch as ring
    import torch

    params = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(params.values(), lr=1.0), params.items(), **options)

    def step(gradients: Arrays) -> Arrays:
        for name, param in params.items():
            param.grad = torch.from_numpy(gradients[name].copy())
        optimizer.step()
        return _taken({name: param.detach().numpy() for name, param in params.items()})

    return {name: name for name in SHAPES}, step, optimizer._ring._exchange


def keras(**options: Any) -> Made:
    """In eager mode, where the backend has one."""
    import keras
    import ringcore_keras as ring
    from ringcore_keras.optimizer import name_of

    variables = {name: keras.Variable(np.zeros(shape, "float32"), name=name) for name, shape in SHAPES.items()}
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
    optimizer.build(list(variables.values()))

    def step(gradients: Arrays) -> Arrays:
        optimizer.apply([keras.ops.convert_to_tensor(gradients[name]) for name in variables])
        arrays = {name: np.array(keras.ops.convert_to_numpy(variable)) for name, variable in variables.items()}
        for variable in variables.values():
            variable.assign(np.zeros(variable.shape, "float32"))
        return {name: 0.0 - array for name, array in arrays.items()}

    names = {name: name_of(variable, i) for i, (name, variable) in enumerate(variables.items())}
    return names, step, optimizer.ring_options.compression


def model_of_given_gradients(shapes: dict[str, tuple[int, ...]]) -> Any:
    """A model of Keras, of weights of zeros in `held`, whose gradients are its inputs."""
    import keras

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.held = [self.add_weight(shape=shape, initializer="zeros", name=name) for name, shape in shapes.items()]

        def call(self, inputs: Any) -> Any:
            parts, begin = [], 0
            for weight in self.held:
                end = begin + int(np.prod(weight.shape))
                parts.append(keras.ops.sum(keras.ops.reshape(weight, (-1,)) * inputs[0, begin:end]))
                begin = end
            return keras.ops.reshape(sum(parts), (1, 1))

    return Model()


def sum_of_outputs(_: Any, found: Any) -> Any:
    """The loss of such a model."""
    import keras

    return keras.ops.sum(found)


def fit_gradients(model: Any, gradients: Arrays) -> None:
    """A step of such a model, by these gradients, in the order of its weights."""
    row = np.concatenate([gradient.reshape(-1) for gradient in gradients.values()])[None]
    model.fit(row, np.zeros((1, 1), "float32"), batch_size=1, verbose=0)


def keras_fit(**options: Any) -> Made:
    """In what the backend compiles for `fit`."""
    import keras
    import ringcore_keras as ring
    from ringcore_keras.optimizer import name_of

    model = model_of_given_gradients(SHAPES)
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
    model.compile(optimizer, loss=sum_of_outputs)

    def step(gradients: Arrays) -> Arrays:
        fit_gradients(model, gradients)
        arrays = [np.array(keras.ops.convert_to_numpy(weight)) for weight in model.held]
        for weight in model.held:
            weight.assign(np.zeros(weight.shape, "float32"))
        return {name: 0.0 - array for name, array in zip(SHAPES, arrays, strict=True)}

    names = {name: name_of(weight, i) for i, (name, weight) in enumerate(zip(SHAPES, model.held, strict=True))}
    return names, step, optimizer.ring_options.compression


def tensorflow(*, graph: bool = False, compression: Any, process_set: Any = None) -> Made:
    import ringcore_tensorflow as ring
    import tensorflow as tf
    from ringcore.adapter import global_process_set

    variables = {name: tf.Variable(tf.zeros(shape), name=name) for name, shape in SHAPES.items()}
    members = process_set or global_process_set

    def averages(gradients: dict[str, Any]) -> dict[str, Any]:
        tape = tf.GradientTape()
        with ring.DistributedGradientTape(tape, compression=compression, process_set=members) as tape:
            loss = sum(tf.reduce_sum(variable * gradients[name]) for name, variable in variables.items())
        found = tape.gradient(loss, list(variables.values()))
        # What others wait for in the meantime: ranks may come to it in another order.
        ring.allreduce(tf.ones([]), op=ring.Sum, name="beside", process_set=members)
        return dict(zip(variables, found, strict=True))

    run = tf.function(averages) if graph else averages

    def step(gradients: Arrays) -> Arrays:
        try:
            found = run({name: tf.constant(gradient) for name, gradient in gradients.items()})
        except Exception as error:  # TensorFlow's own, while it runs or is traced
            raise ring.as_ringcore_error(error) or error from None
        return {name: average.numpy() for name, average in found.items()}

    return {name: name for name in SHAPES}, step, compression


def tensorflow_function(**options: Any) -> Made:
    """With one thread for all that is under way."""
    import tensorflow as tf

    if tf.config.threading.get_inter_op_parallelism_threads() != 1:
        tf.config.threading.set_inter_op_parallelism_threads(1)
    return tensorflow(graph=True, **options)


def jax(**options: Any) -> Made:
    import jax.numpy as jnp
    import ringcore_jax as ring

    def step(gradients: Arrays) -> Arrays:
        held = {name: jnp.array(gradient) for name, gradient in gradients.items()}
        averages = ring.allreduce_gradients(held, **options)
        return {name: np.asarray(average) for name, average in averages.items()}

    return {name: name for name in SHAPES}, step, options["compression"]


def jax_compiled(**options: Any) -> Made:
    import jax
    import jax.numpy as jnp
    import optax
    import ringcore_jax as ring

    optimizer = ring.DistributedOptimizer(optax.sgd(1.0), **options)
    params = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
    state = optimizer.init(params)

    @jax.jit
    def update(gradients: Any) -> Any:
        # What the program has besides keeps its place in the order of its calls.
        members = options.get("process_set", _everybody())
        before = ring.allreduce(jnp.ones(()), op=ring.Sum, process_set=members)
        updates, _ = optimizer.update(gradients, state, params)
        return updates, before, ring.allreduce(jnp.ones(()), op=ring.Sum, process_set=members)

    def step(gradients: Arrays) -> Arrays:
        try:
            updates, *_ = jax.block_until_ready(update(gradients))
        except Exception as error:
            raise ring.as_ringcore_error(error) or error from None
        return {name: 0.0 - np.asarray(change) for name, change in updates.items()}

    return {name: name for name in SHAPES}, step, options["compression"]


def _everybody() -> Any:
    from ringcore.adapter import global_process_set

    return global_process_set


def mxnet(**options: Any) -> Made:
    import ringcore_mxnet as ring

    import mxnet as mx  # isort: skip

    params = mx.gluon.ParameterDict()
    for name, shape in SHAPES.items():
        params.get(name, shape=shape, init="zeros")
    params.initialize()
    trainer = ring.DistributedTrainer(params, "sgd", prefix="exchanges", **options)

    def step(gradients: Arrays) -> Arrays:
        for name, gradient in gradients.items():
            params[name].grad()[:] = gradient
        trainer.allreduce_grads()
        return {name: params[name].grad().asnumpy() for name in SHAPES}

    names = {name: f"exchanges.{trainer._param2idx[name]}.{name}" for name in SHAPES}
    return names, step, trainer._ring_compression


def _taken(arrays: Arrays) -> Arrays:
    """The averages that a step of SGD with rate 1 has subtracted from zeros, which are zeros again."""
    found = {name: 0.0 - array for name, array in arrays.items()}
    for array in arrays.values():
        array[...] = 0
    return found


@contextlib.contextmanager
def told(words: str) -> Iterator[None]:
    """What is in here raises a MismatchError that says so."""
    import re

    import ringcore

    try:
        yield
    except ringcore.MismatchError as error:
        assert re.search(words, str(error), re.DOTALL), str(error)
        assert "Traceback" not in str(error)
    else:
        raise AssertionError(f"nobody said '{words}'")


# What each needs, and the variables of its environment.
TRAINS: dict[str, tuple[Callable[..., Made], tuple[str, ...], dict[str, str]]] = {
    "torch": (torch, ("ringcore_torch", "torch"), {}),
    "keras_torch": (keras, ("ringcore_keras", "keras", "ringcore_torch", "torch"), {"KERAS_BACKEND": "torch"}),
    "keras_fit_torch": (keras_fit, ("ringcore_keras", "keras", "ringcore_torch", "torch"), {"KERAS_BACKEND": "torch"}),
    "keras_tensorflow": (
        keras,
        ("ringcore_keras", "ringcore_tensorflow", "tensorflow"),
        {"KERAS_BACKEND": "tensorflow"},
    ),
    "keras_fit_tensorflow": (
        keras_fit,
        ("ringcore_keras", "ringcore_tensorflow", "tensorflow"),
        {"KERAS_BACKEND": "tensorflow"},
    ),
    "keras_jax": (keras, ("ringcore_keras", "keras", "ringcore_jax", "jax"), {"KERAS_BACKEND": "jax"}),
    "keras_fit_jax": (keras_fit, ("ringcore_keras", "keras", "ringcore_jax", "jax"), {"KERAS_BACKEND": "jax"}),
    "tensorflow": (tensorflow, ("ringcore_tensorflow", "tensorflow"), {}),
    "tensorflow_function": (tensorflow_function, ("ringcore_tensorflow", "tensorflow"), {}),
    "jax": (jax, ("ringcore_jax", "jax"), {}),
    "jax_compiled": (jax_compiled, ("ringcore_jax", "optax"), {}),
    "mxnet": (mxnet, ("ringcore_mxnet", "mxnet"), {}),
}
