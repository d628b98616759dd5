"""Steps of training, in each framework: parameters of zeros, whose gradients are what a rank contributes.

Each function makes the parameters, and gives what takes a step, and what tells the parameters' first values and a hash
of all. A step calls `at` with the moments that it comes to, where its framework has a place for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

SIZES = (300_000, 100)  # a large gradient and a small one

At = Callable[[str], None]
Step = Callable[[float, At], None]
Weights = Callable[[], "tuple[list[float], str]"]


def _told(arrays: Sequence[Any]) -> tuple[list[float], str]:
    held = [np.asarray(array) for array in arrays]
    assert all((array == array.flat[0]).all() for array in held)
    return [float(array.flat[0]) for array in held], hashlib.sha256(b"".join(a.tobytes() for a in held)).hexdigest()


def torch() -> tuple[Step, Weights]:
    import ringcore_torch as ring
    import torch

    params = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), op=ring.Sum)

    def step(contribution: float, at: At) -> None:
        optimizer.zero_grad()
        loss = sum((param * contribution).sum() for param in params)
        at("backward")
        loss.backward()
        at("collective")
        optimizer.synchronize()
        at("step")
        with optimizer.skip_synchronize():
            optimizer.step()

    return step, lambda: _told([param.detach().numpy() for param in params])


def tensorflow(*, graph: bool = False) -> tuple[Step, Weights]:
    import ringcore_tensorflow as ring
    import tensorflow as tf

    params = [tf.Variable(tf.zeros([size])) for size in SIZES]

    def gradients(contribution: Any, at: At) -> Any:
        with ring.DistributedGradientTape(tf.GradientTape(), op=ring.Sum) as tape:
            loss = sum(tf.reduce_sum(param * contribution) for param in params)
        at("backward")
        at("collective")
        return tape.gradient(loss, params)

    def apply(found: Any) -> None:
        for param, gradient in zip(params, found, strict=True):
            param.assign_sub(gradient)

    @tf.function
    def whole(contribution: Any) -> None:
        apply(gradients(contribution, lambda _: None))

    def step(contribution: float, at: At) -> None:
        if not graph:
            found = gradients(contribution, at)
            at("step")
            apply(found)
            return
        at("backward")
        at("collective")
        whole(tf.constant(contribution))
        at("step")

    return step, lambda: _told([param.numpy() for param in params])


def tensorflow_function() -> tuple[Step, Weights]:
    return tensorflow(graph=True)


def jax() -> tuple[Step, Weights]:
    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring

    params = [jnp.zeros(size) for size in SIZES]

    def loss(held: Any, contribution: float) -> Any:
        return sum(jnp.sum(param * contribution) for param in held)

    def step(contribution: float, at: At) -> None:
        found = jax.grad(loss)(params, contribution)
        at("backward")
        at("collective")
        sums = ring.allreduce_gradients(found, op=ring.Sum)
        at("step")
        params[:] = [param - change for param, change in zip(params, sums, strict=True)]

    return step, lambda: _told(params)


def jax_compiled() -> tuple[Step, Weights]:
    import jax
    import jax.numpy as jnp
    import optax
    import ringcore_jax as ring

    optimizer = ring.DistributedOptimizer(optax.sgd(1.0), op=ring.Sum)
    held = {"params": [jnp.zeros(size) for size in SIZES]}
    held["state"] = optimizer.init(held["params"])

    @jax.jit
    def whole(params: Any, state: Any, contribution: Any) -> Any:
        found = jax.grad(lambda held: sum(jnp.sum(param * contribution) for param in held))(params)
        changes, state = optimizer.update(found, state, params)
        return optax.apply_updates(params, changes), state

    def step(contribution: float, at: At) -> None:
        at("backward")
        at("collective")
        held["params"], held["state"] = jax.block_until_ready(whole(held["params"], held["state"], contribution))
        at("step")

    return step, lambda: _told(held["params"])


def mxnet() -> tuple[Step, Weights]:
    import ringcore_mxnet as ring

    import mxnet as mx  # isort: skip

    params = mx.gluon.ParameterDict()
    for number, size in enumerate(SIZES):
        params.get(f"weight{number}", shape=(size,), init="zeros")
    params.initialize()
    trainer = ring.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})

    def step(contribution: float, at: At) -> None:
        with mx.autograd.record():
            loss = sum((param.data() * contribution).sum() for param in params.values())
        at("backward")
        loss.backward()
        at("collective")
        trainer.allreduce_grads()
        at("step")
        trainer.update(1.0 / ring.size())  # Of averages: exact sums where the number is a power of two.

    return step, lambda: _told([param.data().asnumpy() for param in params.values()])


def keras_fit() -> tuple[Step, Weights]:
    import keras
    import ringcore_keras as ring

    dense = [keras.layers.Dense(units, use_bias=False, kernel_initializer="zeros") for units in (100, 1)]
    inputs = keras.Input([3000])
    model = keras.Model(inputs, [each(inputs) for each in dense])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(1.0), op=ring.Sum)
    model.compile(optimizer, loss=[lambda _, found: keras.ops.sum(found)] * 2)

    def step(contribution: float, at: At) -> None:
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: (at("backward"), at("collective")),
            on_train_batch_end=lambda batch, logs: at("step"),
        )
        x = np.full((1, 3000), contribution, "float32")
        model.fit(x, [np.zeros((1, 100)), np.zeros((1, 1))], batch_size=1, verbose=0, callbacks=[callback])

    return step, lambda: _told([keras.ops.convert_to_numpy(each.kernel) for each in dense])


# What each needs, and in which moments ranks are lost: the forms of a framework share them.
TRAINS: dict[str, tuple[Callable[[], tuple[Step, Weights]], tuple[str, ...], tuple[str, ...]]] = {
    "torch": (torch, ("ringcore_torch", "torch"), ("backward", "collective", "step", "commit")),
    "tensorflow": (tensorflow, ("ringcore_tensorflow", "tensorflow"), ("backward", "commit")),
    "tensorflow_function": (
        tensorflow_function, ("ringcore_tensorflow", "tensorflow"), ("collective", "step")
    ),
    "jax": (jax, ("ringcore_jax",), ("backward", "commit")),
    "jax_compiled": (jax_compiled, ("ringcore_jax", "optax"), ("collective", "step")),
    "mxnet": (mxnet, ("ringcore_mxnet", "mxnet"), ("backward", "collective", "step", "commit")),
    "keras_fit": (keras_fit, ("ringcore_keras", "keras"), ("backward", "collective", "step", "commit")),
}  # fmt: skip
