"""One rank has a batch more than the others, which go on to something else.

raises: DeadlockError
words: rank 0 in broadcast 'broadcast_parameters.weight' | rank 1 in allreduce
remedy: Give all ranks as many batches (a DistributedSampler does), or call join() on each rank behind its last one.
"""

import ringcore_torch as ring
import torch

ring.init()
torch.manual_seed(0)
model = torch.nn.Linear(3000, 300)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = ring.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for _ in range(3 + ring.rank()):
    optimizer.zero_grad()
    model(torch.ones(3000)).sum().backward()
    optimizer.step()
ring.broadcast_parameters(model.state_dict(), root_rank=0)
