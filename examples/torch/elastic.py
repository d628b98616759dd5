"""Ranks may come and go: ringrun -np 3 --min-np 1 python examples/torch/elastic.py; kill one of them."""

import ringcore_torch as ring
import torch
from ringcore_torch import elastic
from sklearn.datasets import load_digits
from torch import nn

GLOBAL_BATCH = 64  # images a step, of all ranks together

ring.init()
digits = load_digits()
images = torch.tensor(digits.images / 16).flatten(1)
labels = torch.tensor(digits.target)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
optimizer = ring.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@elastic.run
def train(state):
    while state.epoch < 10:
        own = GLOBAL_BATCH // ring.size()
        # What is left of this epoch, shared out among the ranks that are there.
        for number, batch in enumerate(torch.tensor(list(state.sampler)).split(own)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            state.sampler.record_batch(number, own)
            state.commit()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)


train(elastic.TorchState(model, optimizer, sampler=elastic.ElasticSampler(range(1408)), epoch=0))

if ring.rank() == 0:
    correct = model(images[1408:]).argmax(1) == labels[1408:]
    print(f"accuracy {correct.double().mean().item():.4f} on {ring.size()} ranks")
