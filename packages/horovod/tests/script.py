"""A script as Horovod's users write them: everything here is Horovod's interface."""

import os
import sys

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.mpi_ops import Sum
from horovod.torch.mpi_ops import allreduce as reduce_over_all

hvd.init()
assert (os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"]) == (str(hvd.rank()), str(hvd.size()))
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), hvd.Compression.none, num_groups=2)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=model)

for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.full((2, 4), 1.0 + hvd.rank() + step)).square().sum()
    loss.backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()

total = hvd.allreduce(torch.ones(2) * hvd.rank(), False, "total")
mean = hvd.allreduce(torch.ones(2) * hvd.rank(), average=True, name="mean")
again = reduce_over_all(torch.ones(2), name="again", op=Sum)
rows = hvd.allgather(torch.full((hvd.rank() + 1, 2), float(hvd.rank())), "rows")
root = hvd.broadcast(torch.full((2,), float(hvd.rank())), 1, "root")
handle = hvd.allreduce_async_(torch.ones(3), average=False, name="handle")
hvd.poll(handle)
waited = hvd.synchronize(handle)
both = hvd.grouped_allreduce([torch.ones(1), torch.ones(2)], average=False, name="both")
objects = hvd.allgather_object(hvd.rank(), name="objects")
try:
    hvd.allreduce(torch.ones(2 + hvd.rank()), name="misfit")
    failed = False
except HorovodInternalError:
    failed = True
hvd.barrier()
if hvd.rank() == 0:
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    values = [weights, total, mean, again, rows, root, waited, *both]
    with open(sys.argv[1], "w") as file:
        print([value.flatten().tolist() for value in values], objects, failed, file=file)
hvd.shutdown()
