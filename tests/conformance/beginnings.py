"""Ranks that begin to train, in each framework: two steps, of which the first may be taken with other weights."""

from __future__ import annotations

from typing import Any


def train_torch(seed: int, **options: bool) -> list[float]:
    import ringcore_torch as ring
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters(), **options
    )
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    return [float(value) for parameter in model.parameters() for value in parameter.flatten()]


def train_tensorflow(seed: int, *, graph: bool = False, **options: bool) -> list[float]:
    import ringcore_tensorflow as ring
    import tensorflow as tf

    tf.random.set_seed(seed)
    weight, bias = tf.Variable(tf.random.normal([3, 2], seed=seed), name="weight"), tf.Variable([0.0], name="bias")

    def step() -> None:
        with ring.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = tf.reduce_sum(tf.ones([2, 3]) @ weight + bias)
        for variable, gradient in zip((weight, bias), tape.gradient(loss, [weight, bias]), strict=True):
            variable.assign_sub(0.1 * gradient)

    run = tf.function(step) if graph else step
    for _ in range(2):
        run()
    return [float(value) for value in tf.reshape(weight, [-1])]


def train_tensorflow_function(seed: int, **options: bool) -> list[float]:
    import ringcore_tensorflow as ring
    import tensorflow as tf

    try:
        return train_tensorflow(seed, graph=True, **options)
    except tf.errors.OpError as error:
        raise ring.as_ringcore_error(error) or error from None


def train_jax(seed: int, **options: bool) -> list[float]:
    import jax
    import jax.numpy as jnp
    import ringcore_jax as ring

    weight = jax.random.normal(jax.random.key(seed), (3, 2))
    gradient = ring.value_and_grad(lambda params: (jnp.ones((2, 3)) @ params["weight"]).sum(), **options)
    for _ in range(2):
        weight -= 0.1 * gradient({"weight": weight})[1]["weight"]
    return [float(value) for value in weight.ravel()]


def train_jax_compiled(seed: int, **options: bool) -> list[float]:
    import jax
    import jax.numpy as jnp
    import optax
    import ringcore_jax as ring

    params = {"weight": jax.random.normal(jax.random.key(seed), (3, 2)), "bias": jnp.zeros(2)}
    optimizer = ring.DistributedOptimizer(optax.sgd(0.1), **options)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        gradients = jax.grad(lambda held: (jnp.ones((2, 3)) @ held["weight"] + held["bias"]).sum())(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    try:
        for _ in range(2):
            params, state = step(params, state)
        return [float(value) for array in params.values() for value in array.ravel()]
    except Exception as error:
        raise ring.as_ringcore_error(error) or error from None


def train_mxnet(seed: int, **options: bool) -> list[float]:
    import ringcore_mxnet as ring

    import mxnet as mx  # isort: skip

    mx.random.seed(seed)
    net = mx.gluon.nn.Dense(2)  # its shape is known with the first batch
    net.initialize(mx.init.Xavier())
    trainer = ring.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, **options)
    for _ in range(2):
        with mx.autograd.record():
            loss = net(mx.nd.ones((2, 3))).sum()
        loss.backward()
        trainer.step(2)
    # All of them are waited for: an operation counts when it has ended, and MXNet ends a step behind Python's back.
    return [float(value) for each in (net.weight, net.bias) for value in each.data().asnumpy().ravel()]


def train_mxnet_module(seed: int, **options: bool) -> list[float]:
    import numpy as np
    import ringcore_mxnet as ring

    import mxnet as mx  # isort: skip

    mx.random.seed(seed)
    output = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="out")
    label = "out_label"
    batches = mx.io.NDArrayIter(np.ones((4, 3), "float32"), np.ones((4, 2), "float32"), 2, label_name=label)
    module = mx.mod.Module(output, label_names=(label,))
    optimizer = ring.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.1, rescale_grad=0.5), **options)
    module.fit(batches, kvstore=None, optimizer=optimizer, initializer=mx.init.Xavier(), num_epoch=1)
    return [float(value) for array in module.get_params()[0].values() for value in array.asnumpy().ravel()]


# Who broadcasts when told to, and what each needs.
TRAINS: dict[str, tuple[Any, bool, tuple[str, ...]]] = {
    "torch": (train_torch, True, ("ringcore_torch", "torch")),
    "tensorflow": (train_tensorflow, False, ("ringcore_tensorflow", "tensorflow")),
    "tensorflow_function": (train_tensorflow_function, False, ("ringcore_tensorflow", "tensorflow")),
    "jax": (train_jax, False, ("ringcore_jax",)),
    "jax_compiled": (train_jax_compiled, False, ("ringcore_jax", "optax")),
    "mxnet": (train_mxnet, True, ("ringcore_mxnet", "mxnet")),
    "mxnet_module": (train_mxnet_module, False, ("ringcore_mxnet", "mxnet")),
}
