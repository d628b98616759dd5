"""Ranks with different numbers of batches: ringrun -np 2 python examples/torch/join.py."""

import ringcore_torch as ring
import torch
from sklearn.datasets import load_digits
from torch import nn

BATCH = 32  # images of one source a step

ring.init()
digits = load_digits()
images = torch.tensor(digits.images / 16).flatten(1)
labels = torch.tensor(digits.target)
# Two sources of data, one longer than the other; one rank reads both, or each of two ranks reads one.
sources = [torch.arange(896), torch.arange(896, 1408)]
own = sources[ring.rank() :: ring.size()]

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).double()
optimizer = ring.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.3), named_parameters=model.named_parameters()
)
ring.broadcast_parameters(model.state_dict(), root_rank=0)

for _ in range(20):
    readers = [source.split(BATCH) for source in own]
    for step in range(max(map(len, readers))):
        batches = [reader[step] for reader in readers if step < len(reader)]
        optimizer.zero_grad()
        losses = [nn.functional.cross_entropy(model(images[batch]), labels[batch]) for batch in batches]
        (torch.stack(losses).sum() / len(own)).backward()
        optimizer.step()
    # A rank whose data has ended takes part in the averages of the others with zeros, until all have come here.
    last = ring.join()
    ring.broadcast_parameters(model.state_dict(), root_rank=last)

if ring.rank() == 0:
    correct = model(images[1408:]).argmax(1) == labels[1408:]
    print(f"accuracy {correct.double().mean().item():.4f} on {ring.size()} ranks")
