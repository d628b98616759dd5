"""`Module.fit` with an optimizer that averages gradients: ringrun -np 2 python examples/mxnet/module.py."""

import numpy as np
import ringcore_mxnet as ring  # before mxnet: it helps the import along

import mxnet as mx  # isort: skip
from sklearn.datasets import load_digits

GLOBAL_BATCH = 64  # images a step, of all ranks together

ring.init()
digits = load_digits()
images, labels = digits.images.reshape(-1, 64) / 16, digits.target
batch = GLOBAL_BATCH // ring.size()
# The same order on every rank, of which each takes every n-th image: a step sees the same ones on any number of ranks.
own = np.random.default_rng(0).permutation(1408)[ring.rank() :: ring.size()]
batches = mx.io.NDArrayIter(images[own], labels[own], batch)

data = mx.sym.var("data")
hidden = mx.sym.FullyConnected(data, num_hidden=128, name="fc1")
hidden = mx.sym.Activation(hidden, act_type="relu", name="relu1")
output = mx.sym.FullyConnected(hidden, num_hidden=10, name="fc2")
module = mx.mod.Module(mx.sym.SoftmaxOutput(output, name="softmax"))

module.bind(batches.provide_data, batches.provide_label)
mx.random.seed(ring.rank())  # every rank starts elsewhere; the broadcast makes them equal to rank 0
module.init_params(mx.init.Xavier())
arguments, auxiliary = module.get_params()
ring.broadcast_parameters(arguments, root_rank=0)
ring.broadcast_parameters(auxiliary, root_rank=0)
module.set_params(arguments, auxiliary)

optimizer = mx.optimizer.create("sgd", learning_rate=0.2, momentum=0.9, rescale_grad=1 / batch)
module.fit(batches, kvstore=None, optimizer=ring.DistributedOptimizer(optimizer), num_epoch=20)

if ring.rank() == 0:
    rest = mx.io.NDArrayIter(images[1408:], labels[1408:], 1)
    accuracy = module.score(rest, "acc")[0][1]
    print(f"accuracy {accuracy:.4f} on {ring.size()} ranks")
