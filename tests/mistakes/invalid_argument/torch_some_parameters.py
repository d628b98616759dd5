"""Names for a part of the parameters.

raises: InvalidArgument
words: named_parameters | 2 of the optimizer's 4 | whole model
remedy: Pass model.named_parameters() of the whole model.
"""

import ringcore_torch as ring
import torch

ring.init()
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ring.DistributedOptimizer(optimizer, named_parameters=model[0].named_parameters())
