"""A script as users of Horovod's Keras interface write them: everything here is Horovod's interface."""

import sys

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow.keras.callbacks import BestModelCheckpoint

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

generator = np.random.default_rng(hvd.rank())
x = generator.standard_normal((64, 5)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8)

tf.random.set_seed(hvd.rank())
model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(2)])
scaled_lr = 0.01 * hvd.size()
opt = tf.keras.optimizers.Adam(scaled_lr)
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), optimizer=opt, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=2, steps_per_epoch=8, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(sys.argv[1] + ".epoch-{epoch}.keras"))
    best = BestModelCheckpoint(monitor="loss")
    best.filepath = sys.argv[1] + ".best.keras"
    callbacks.append(best)
history = model.fit(
    dataset, steps_per_epoch=8, callbacks=callbacks, epochs=3, verbose=1 if hvd.rank() == 0 else 0
).history
weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
everybody = np.asarray(hvd.allgather(weights[np.newaxis], name="weights"))
mean = hvd.allreduce(float(hvd.rank()), name="mean")
if hvd.rank() == 0:
    again = hvd.load_model(sys.argv[1] + ".best.keras")
    found = [bool((everybody == everybody[0]).all()), sorted(history), round(history["lr"][-1], 6), float(mean)]
    with open(sys.argv[1], "w") as file:
        print(*found, type(again.optimizer).__name__, file=file)
hvd.shutdown()
