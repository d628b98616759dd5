"""A training loop with a tape: ringrun -np 2 python examples/tensorflow/digits.py."""

import numpy as np
import ringcore_tensorflow as ring
import tensorflow as tf
from sklearn.datasets import load_digits

GLOBAL_BATCH = 64  # images a step, of all ranks together

ring.init()
digits = load_digits()
images, labels = digits.images.reshape(-1, 64) / 16, digits.target.astype("int64")

tf.random.set_seed(ring.rank())  # every rank starts elsewhere; the broadcast makes them equal to rank 0
layers = [
    tf.Variable(tf.random.normal([64, 128], stddev=0.1, dtype=tf.float64), name="hidden"),
    tf.Variable(tf.zeros([128], tf.float64), name="hidden_bias"),
    tf.Variable(tf.random.normal([128, 10], stddev=0.1, dtype=tf.float64), name="output"),
]
ring.broadcast_variables(layers, root_rank=0)


def net(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(x @ layers[0] + layers[1]) @ layers[2]


@tf.function
def step(x: tf.Tensor, y: tf.Tensor) -> None:
    with ring.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, net(x)))
    for variable, gradient in zip(layers, tape.gradient(loss, layers), strict=True):
        variable.assign_sub(0.5 * gradient)


for epoch in range(10):
    # The same order on every rank, of which each takes its part.
    order = np.random.default_rng(epoch).permutation(1408)
    for batch in order.reshape(-1, GLOBAL_BATCH):
        own = np.split(batch, ring.size())[ring.rank()]
        step(tf.constant(images[own]), tf.constant(labels[own]))

if ring.rank() == 0:
    correct = tf.argmax(net(tf.constant(images[1408:])), 1) == labels[1408:]
    print(f"accuracy {np.mean(correct):.4f} on {ring.size()} ranks")
