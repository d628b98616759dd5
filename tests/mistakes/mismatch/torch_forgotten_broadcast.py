"""The broadcast of the parameters was forgotten.

raises: MismatchError
words: different weights at the first step | '0.weight' | ranks [1] | broadcast_parameters | check_weights
remedy: Call broadcast_parameters(model.state_dict(), root_rank=0) before the first step, or pass
    broadcast=True to DistributedOptimizer.
"""

import ringcore_torch as ring
import torch

ring.init()
torch.manual_seed(ring.rank())
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = ring.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
