"""Mixed precision and gradient accumulation: ringrun -np 2 python examples/torch/amp.py."""

import ringcore_torch as ring
import torch
from sklearn.datasets import load_digits
from torch import nn

MICRO_BATCH = 16  # images a backward pass
PASSES = 4  # backward passes a step, of all ranks together

ring.init()
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).flatten(1)
labels = torch.tensor(digits.target)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
own_passes = PASSES // ring.size()
optimizer = ring.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
    named_parameters=model.named_parameters(),
    backward_passes_per_step=own_passes,  # gradients are averaged after the last one
)
ring.broadcast_parameters(model.state_dict(), root_rank=0)
scaler = torch.amp.GradScaler("cpu")

for epoch in range(10):
    order = torch.randperm(1408, generator=torch.Generator().manual_seed(epoch))
    for step in order.split(MICRO_BATCH * PASSES):
        optimizer.zero_grad()
        for batch in step.split(MICRO_BATCH)[ring.rank() :: ring.size()]:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images[batch]), labels[batch]) / own_passes
            scaler.scale(loss).backward()
        optimizer.synchronize()  # the averages must be there before they are unscaled and clipped
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()

if ring.rank() == 0:
    correct = model(images[1408:]).argmax(1) == labels[1408:]
    print(f"accuracy {correct.double().mean().item():.4f} on {ring.size()} ranks")
