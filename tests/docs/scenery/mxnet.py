"""A net, a module and their data."""

import mxnet as mx
import numpy
import ringcore
from mxnet import autograd, gluon

mx.random.seed(0)
net = gluon.nn.Dense(1, in_units=4)
loss_of = gluon.loss.L2Loss()
batches_of_this_rank = [(mx.nd.ones((8, 4)), mx.nd.ones((8, 1)))] * 2
batch_size_of_this_rank = 8
batches = mx.io.NDArrayIter(numpy.ones((16, 4)), numpy.ones((16, 1)), 8, label_name="lin_reg_label")
net_of_module = mx.sym.LinearRegressionOutput(
    mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1), name="lin_reg"
)
module = mx.mod.Module(net_of_module, label_names=["lin_reg_label"])
module.bind(batches.provide_data, batches.provide_label)
module.init_params()
assert autograd and ringcore
