"""A symbolic net and `Module.fit` as tutorials have them."""

import sys

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

hvd.init()
context = mx.cpu(hvd.local_rank())
batch_size = 10

generator = np.random.RandomState(hvd.rank())
x = generator.uniform(-1, 1, (200, 6)).astype("float32")
y = (x.sum(1) > 0).astype("float32")
train_iter = mx.io.NDArrayIter(x, y, batch_size)

data = mx.sym.var("data")
fc1 = mx.sym.FullyConnected(data, name="fc1", num_hidden=16)
act1 = mx.sym.Activation(fc1, name="relu1", act_type="relu")
fc2 = mx.sym.FullyConnected(act1, name="fc2", num_hidden=2)
net = mx.sym.SoftmaxOutput(fc2, name="softmax")
model = mx.mod.Module(symbol=net, context=context)
model.bind(data_shapes=train_iter.provide_data, label_shapes=train_iter.provide_label)

optimizer_params = {"learning_rate": 0.1 * hvd.size(), "momentum": 0.9, "rescale_grad": 1.0 / batch_size}
opt = mx.optimizer.create("sgd", **optimizer_params)
opt = hvd.DistributedOptimizer(opt)

initializer = mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2)
model.init_params(initializer)
(arg_params, aux_params) = model.get_params()
if arg_params:
    hvd.broadcast_parameters(arg_params, root_rank=0)
if aux_params:
    hvd.broadcast_parameters(aux_params, root_rank=0)
model.set_params(arg_params=arg_params, aux_params=aux_params)

checkpoint = mx.callback.do_checkpoint(sys.argv[1]) if hvd.rank() == 0 else None
model.fit(
    train_iter, kvstore=None, optimizer=opt, num_epoch=8, epoch_end_callback=checkpoint,
    batch_end_callback=mx.callback.Speedometer(batch_size, 10),
)  # fmt: skip
accuracy = model.score(train_iter, mx.metric.Accuracy())[0][1]
weights = model.get_params()[0]["fc1_weight"]
same = hvd.allgather_object(weights.asnumpy().tobytes())
if hvd.rank() == 0:
    print(f"accuracy {'good' if accuracy > 0.9 else accuracy}, same weights {len(set(same)) == 1}")
