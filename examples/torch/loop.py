"""A plain training loop: ringrun -np 2 python examples/torch/loop.py."""

import ringcore_torch as ring
import torch
from sklearn.datasets import load_digits
from torch import nn

GLOBAL_BATCH = 64  # images a step, of all ranks together

ring.init()
digits = load_digits()
images = torch.tensor(digits.images / 16).flatten(1)
labels = torch.tensor(digits.target)

torch.manual_seed(ring.rank())  # every rank starts elsewhere; the broadcast makes them equal to rank 0
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
optimizer = ring.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
ring.broadcast_parameters(model.state_dict(), root_rank=0)

for epoch in range(10):
    # The same order on every rank, of which each takes its part.
    order = torch.randperm(1408, generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(GLOBAL_BATCH):
        own = batch.chunk(ring.size())[ring.rank()]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[own]), labels[own]).backward()
        optimizer.step()

if ring.rank() == 0:
    correct = model(images[1408:]).argmax(1) == labels[1408:]
    print(f"accuracy {correct.double().mean().item():.4f} on {ring.size()} ranks")
