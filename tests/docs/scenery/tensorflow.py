"""A model, its optimizer, its loss and a batch."""

import keras
import tensorflow as tf

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
x, y = tf.ones((8, 4)), tf.ones((8, 1))
tape = tf.GradientTape()


def loss_of(y, predicted):
    return tf.reduce_mean((y - predicted) ** 2)
