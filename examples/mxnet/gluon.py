"""A loop of Gluon: ringrun -np 2 python examples/mxnet/gluon.py."""

import numpy as np
import ringcore_mxnet as ring  # before mxnet: it helps the import along

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon
from sklearn.datasets import load_digits

GLOBAL_BATCH = 64  # images a step, of all ranks together

ring.init()
digits = load_digits()
images, labels = digits.images.reshape(-1, 64) / 16, digits.target

mx.random.seed(ring.rank())  # every rank starts elsewhere; the broadcast makes them equal to rank 0
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(128, activation="relu", dtype="float64"), gluon.nn.Dense(10, dtype="float64"))
net.initialize(mx.init.Xavier())
net.hybridize()
ring.broadcast_parameters(net.collect_params(), root_rank=0)
trainer = ring.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.2, "momentum": 0.9})
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

for epoch in range(10):
    # The same order on every rank, of which each takes its part.
    order = np.random.default_rng(epoch).permutation(1408)
    for batch in order.reshape(-1, GLOBAL_BATCH):
        own = np.split(batch, ring.size())[ring.rank()]
        with autograd.record():
            loss = loss_of(net(mx.nd.array(images[own], dtype="float64")), mx.nd.array(labels[own]))
        loss.backward()
        trainer.step(len(own))

if ring.rank() == 0:
    guesses = net(mx.nd.array(images[1408:], dtype="float64")).argmax(axis=1).asnumpy()
    print(f"accuracy {np.mean(guesses == labels[1408:]):.4f} on {ring.size()} ranks")
