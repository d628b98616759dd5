"""A training loop with optax: ringrun -np 2 python examples/jax/digits.py."""

import jax
import jax.numpy as jnp
import optax
import ringcore_jax as ring
from sklearn.datasets import load_digits

GLOBAL_BATCH = 64  # images a step, of all ranks together

jax.config.update("jax_enable_x64", True)
ring.init()
digits = load_digits()
images = jnp.asarray(digits.images / 16).reshape(len(digits.images), -1)
labels = jnp.asarray(digits.target)


def initial(key):
    first, second = jax.random.split(key)
    return [
        {"weights": jax.random.normal(first, (64, 128)) / 8, "bias": jnp.zeros(128)},
        {"weights": jax.random.normal(second, (128, 10)) / 11, "bias": jnp.zeros(10)},
    ]


def scores(params, images):
    hidden = jax.nn.relu(images @ params[0]["weights"] + params[0]["bias"])
    return hidden @ params[1]["weights"] + params[1]["bias"]


def loss(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, images), labels).mean()


optimizer = ring.DistributedOptimizer(optax.sgd(0.2, momentum=0.9))
params = initial(jax.random.key(ring.rank()))  # every rank starts elsewhere
params = ring.broadcast_parameters(params, root_rank=0)
state = optimizer.init(params)


@jax.jit
def step(params, state, images, labels):
    gradients = jax.grad(loss)(params, images, labels)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


for epoch in range(10):
    # The same order on every rank, of which each takes its part.
    order = jax.random.permutation(jax.random.key(epoch), 1408)
    for batch in order.reshape(-1, GLOBAL_BATCH):
        own = jnp.split(batch, ring.size())[ring.rank()]
        params, state = step(params, state, images[own], labels[own])

if ring.rank() == 0:
    correct = scores(params, images[1408:]).argmax(1) == labels[1408:]
    print(f"accuracy {correct.mean():.4f} on {ring.size()} ranks")
