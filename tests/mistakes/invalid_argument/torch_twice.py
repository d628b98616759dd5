"""An optimizer is wrapped twice.

raises: InvalidArgument
words: DistributedOptimizer already | once
remedy: Wrap it once.
"""

import ringcore_torch as ring
import torch

ring.init()
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = ring.DistributedOptimizer(optimizer)
ring.DistributedOptimizer(optimizer)
