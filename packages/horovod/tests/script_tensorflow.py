"""A script as users of Horovod's TensorFlow 2 interface write them: everything here is Horovod's interface."""

import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import broadcast_object

hvd.init()
tf.random.set_seed(hvd.rank())
model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="tanh"), tf.keras.layers.Dense(1)])
loss_of = tf.losses.MeanSquaredError()
opt = tf.optimizers.Adam(0.001 * hvd.size())
checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape, compression=Compression.fp16)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)
    return loss


for batch in range(5):
    inputs = tf.fill([4, 3], float(hvd.rank() + batch))
    loss = training_step(inputs, tf.ones([4, 1]), batch == 0)
if hvd.rank() == 0:
    checkpoint.save(sys.argv[1] + ".checkpoint")

total = hvd.allreduce(tf.ones(2) * hvd.rank(), average=False, name="total")
mean = hvd.allreduce(tf.constant([1, 4]) * hvd.rank(), op=hvd.Average)
rows = hvd.allgather(tf.fill([hvd.rank() + 1], hvd.rank()))
root = hvd.broadcast(tf.fill([2], hvd.rank()), root_rank=1)
own = tf.Variable([float(hvd.rank())])
hvd.broadcast_([own], root_rank=1)
sent, received = hvd.alltoall(tf.range(2) + 10 * hvd.rank(), splits=[1, 1])
share = hvd.reducescatter(tf.range(4.0), op=hvd.Sum)
both = hvd.grouped_allreduce([tf.ones(1), tf.ones(2)], average=False)
config = broadcast_object({"rank": hvd.rank()}, root_rank=1)
weights = np.concatenate([variable.numpy().ravel() for variable in model.trainable_variables])
same = all((other == weights).all() for other in hvd.allgather_object(weights))
try:
    hvd.allreduce(tf.ones(2 + hvd.rank()), name="misfit")
    failed = False
except hvd.HorovodInternalError:
    failed = True
hvd.join()
if hvd.rank() == 0:
    values = [total, mean, rows, root, own, sent, received, share, *both]
    with open(sys.argv[1], "w") as file:
        print([np.asarray(value).tolist() for value in values], config, same, failed, file=file)
hvd.shutdown()
