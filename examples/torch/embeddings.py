"""A model with sparse embeddings: ringrun -np 2 python examples/torch/embeddings.py.

A pixel of a scanned digit is a word: its place and its brightness. A step has gradients for the rows of its own words
only, and only those are sent.
"""

import ringcore_torch as ring
import torch
from sklearn.datasets import load_digits
from torch import nn

GLOBAL_BATCH = 64
LEVELS = 17  # of brightness

ring.init()
digits = load_digits()
words = torch.tensor(digits.images).long().flatten(1) + LEVELS * torch.arange(64)
labels = torch.tensor(digits.target)


class Net(nn.Module):
    """Sums the embeddings of an image's words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(64 * LEVELS, 32, mode="sum", sparse=True)
        nn.init.normal_(self.words.weight, std=0.1)
        self.classes = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the ten classes."""
        return self.classes(self.words(x).tanh())


torch.manual_seed(0)
model = Net().double()
optimizer = ring.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.3), named_parameters=model.named_parameters()
)
ring.broadcast_parameters(model.state_dict(), root_rank=0)

for epoch in range(20):
    order = torch.randperm(1408, generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(GLOBAL_BATCH):
        own = batch.chunk(ring.size())[ring.rank()]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words[own]), labels[own]).backward()
        optimizer.step()

if ring.rank() == 0:
    correct = model(words[1408:]).argmax(1) == labels[1408:]
    print(f"accuracy {correct.double().mean().item():.4f} on {ring.size()} ranks")
