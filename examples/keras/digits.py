"""Scanned digits with model.fit: ringrun -np 2 python examples/keras/digits.py, with any KERAS_BACKEND."""

import keras
import ringcore_keras as ring
from sklearn.datasets import load_digits

GLOBAL_BATCH = 64  # images a step, of all ranks together
keras.config.set_floatx("float64")  # the same result with any number of ranks, to the last digit

ring.init()
digits = load_digits()
images, labels = digits.images[..., None] / 16, digits.target
train = ring.shard((images[:1408], labels[:1408]))  # this rank's share
test = images[1408:], labels[1408:]

keras.utils.set_random_seed(ring.rank())  # every rank starts elsewhere; the callback makes them equal to rank 0
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=ring.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    *train,
    batch_size=GLOBAL_BATCH // ring.size(),
    epochs=8,
    shuffle=False,  # so that each step sees the same images with any number of ranks
    verbose=2,
    callbacks=[
        ring.callbacks.BroadcastGlobalVariablesCallback(0),
        ring.callbacks.MetricAverageCallback(),
        ring.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.9**epoch),
    ],
)
accuracy = model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]
if ring.rank() == 0:
    print(f"accuracy {accuracy:.4f} on {ring.size()} ranks")
