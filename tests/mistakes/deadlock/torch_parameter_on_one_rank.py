"""One rank's model has a parameter more.

raises: DeadlockError
words: every rank waits for another one | rank 0 in allreduce | rank 1 in allreduce
remedy: Build the same model on all ranks, and wrap all of its parameters everywhere; a part that one rank does not
    use needs no gradient there, but has to be there.
"""

import ringcore_torch as ring
import torch

ring.init()
torch.manual_seed(0)
named = [("a", torch.nn.Parameter(torch.ones(300000)))]
if ring.rank() == 0:
    named.append(("b", torch.nn.Parameter(torch.ones(300000))))
optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=0.1)
optimizer = ring.DistributedOptimizer(optimizer, named_parameters=named)
for _ in range(3):
    optimizer.zero_grad()
    sum(parameter.sum() for _, parameter in named).backward()
    optimizer.step()
