"""A script for Gluon as Horovod's users write them: everything here is Horovod's interface."""

import sys

import horovod.mxnet as hvd
import mxnet as mx
from horovod.mxnet.mpi_ops import allreduce as reduce_over_all
from mxnet import autograd, gluon

hvd.init()
context = mx.cpu(hvd.local_rank())
mx.random.seed(hvd.rank())
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(8, activation="tanh"), gluon.nn.Dense(1))
net.hybridize()
net.initialize(mx.init.Uniform(), ctx=context)
params = net.collect_params()
if params is not None:
    hvd.broadcast_parameters(params, root_rank=0)
opt = mx.optimizer.create("sgd", multi_precision=True, learning_rate=0.1, momentum=0.9)
trainer = hvd.DistributedTrainer(params, opt, None, hvd.Compression.none, 2.0, num_groups=2)
loss_of = gluon.loss.L2Loss()
for step in range(4):
    x = mx.nd.full((2, 4), 1.0 + hvd.rank() + step, ctx=context)
    with autograd.record():
        loss = loss_of(net(x), mx.nd.ones((2, 1), ctx=context))
    loss.backward()
    trainer.step(2)

total = hvd.allreduce(mx.nd.ones((2,)) * hvd.rank(), False, "total")
mean = reduce_over_all(mx.nd.ones((2,)) * hvd.rank(), average=True, name="mean", priority=-1)
tensor = mx.nd.ones((3,), ctx=context)
hvd.allreduce_(tensor, average=False, name="in place")
rows = hvd.allgather(mx.nd.full((hvd.rank() + 1, 2), hvd.rank()), "rows")
root = hvd.broadcast(mx.nd.full((2,), hvd.rank()), 1, "root")
both = hvd.grouped_allreduce([mx.nd.ones((1,)), mx.nd.ones((2,))], average=False, name="both")
received, splits = hvd.alltoall(mx.nd.full((2,), hvd.rank()), mx.nd.array([1, 1], dtype="int32"))
objects = hvd.allgather_object(hvd.rank(), name="objects")
try:
    hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), name="misfit").wait_to_read()
    failed = False
except hvd.HorovodInternalError:
    failed = True
weights = hvd.allgather(mx.nd.concat(*[p.data().reshape((1, -1)) for p in params.values()], dim=1))
same = bool((weights[0] == weights[1]).min().asscalar())
if hvd.rank() == 0:
    values = [total, mean, tensor, rows, root, *both, received, splits]
    with open(sys.argv[1], "w") as file:
        print([value.reshape((-1,)).asnumpy().tolist() for value in values], objects, failed, same, file=file)
hvd.shutdown()
