"""An elastic script as Horovod's users write them: a rank is killed in the second epoch, and another one comes.

Each call of the training function, each batch, and the end leaves a line in a file.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

EPOCHS = 4
SAMPLES = 48

os.chdir(sys.argv[1])
is_new = Path("killed").exists()
started_as = int(os.environ["HOROVOD_RANK"])
hvd.init()
torch.manual_seed(os.getpid())  # the state makes all weights those of rank 0
inputs = torch.rand(SAMPLES, 2)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(SAMPLES))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(data, shuffle=False)
loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)


def tell(event: str, **more: Any) -> None:
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()
    rate = round(optimizer.param_groups[0]["lr"], 6)
    line = {"pid": os.getpid(), "rank": hvd.rank(), "size": hvd.size(), "rate": rate, "weights": weights, **more}
    with Path(event).open("a") as file:
        file.write(json.dumps(line) + "\n")


@hvd.elastic.run
def train(state: Any) -> None:
    tell("begin", epoch=state.epoch, batch=state.batch, steps=state.steps)
    # The last epoch is for both.
    while state.epoch < EPOCHS or hvd.size() < 2:
        for batch, (data, target, numbers) in enumerate(loader):
            if started_as == 1 and not is_new and state.epoch == 1 and state.batch == 5:
                Path("killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(data), target).backward()
            optimizer.step()
            tell(f"samples.{state.epoch}", numbers=numbers.tolist())
            state.steps += 1
            state.batch += 1
            state.sampler.record_batch(batch, loader.batch_size)
            state.commit()
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)
        state.commit()
    tell("end", epoch=state.epoch, batch=state.batch, steps=state.steps)


def on_reset() -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0, steps=0)
state.register_reset_callbacks([on_reset])
train(state)
