"""The ranks train different models.

raises: MismatchError
words: the gradient of '1.weight' | float32 [1, 3] | float32 [1, 4] | rank 1
remedy: Build the same model on all ranks: what depends on the data (numbers of classes, vocabularies) is
    agreed on first.
"""

import ringcore_torch as ring
import torch

ring.init()
model = torch.nn.Sequential(torch.nn.Linear(4, 3 + ring.rank()), torch.nn.Linear(3 + ring.rank(), 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = ring.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
