"""Gradients are reduced by their maximum.

raises: InvalidArgument
words: DistributedOptimizer | op=Average | MAX
remedy: An optimizer takes op=Average, op=Sum or op=Adasum.
"""

import ringcore_torch as ring
import torch

ring.init()
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ring.DistributedOptimizer(optimizer, op=ring.Max)
