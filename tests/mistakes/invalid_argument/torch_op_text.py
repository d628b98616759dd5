"""The operation of an optimizer is given by its name.

raises: InvalidArgument
words: op is 'average' | Average, Sum
remedy: op is one of Average, Sum and Adasum of the module: op=ring.Average.
"""

import ringcore_torch as ring
import torch

ring.init()
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ring.DistributedOptimizer(optimizer, op="average")
