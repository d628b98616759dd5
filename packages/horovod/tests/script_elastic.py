"""An elastic script, on ranks of which none comes and in the end one goes: each writes what it found."""

import json
import os
import sys
from typing import Any

import horovod.torch as hvd
import torch
from horovod.torch.elastic.sampler import ElasticSampler

hvd.init()
rank = hvd.rank()
found: dict[str, Any] = {}
model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.constant_(model.weight, rank + 1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = ElasticSampler(range(16))


def step() -> list[float]:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return model.weight.flatten().tolist()


@hvd.elastic.run
def train(state: Any, factor: int) -> None:
    found["synced"] = [
        state.model.weight.flatten().tolist(),
        state.batch,
        dict(state.objects),
        optimizer.param_groups[0]["lr"],
    ]
    state.batch, state.objects["b"] = 99, factor
    step()
    state.restore()
    found["restored"] = [model.weight.flatten().tolist(), state.batch]

    step()
    state.commit()
    once = step()
    state.restore()
    again = step()
    state.restore()
    found["twice"] = once == again == step()

    sampler.set_epoch(1)
    sampler.record_batch(0, 4)
    state.commit()
    sampler.record_batch(1, 4)
    state.restore()
    mine = list(sampler)
    everybody = {sample for samples in hvd.allgather_object(mine) for sample in samples}
    found["left"] = [len(mine), len(everybody) == 8]

    if rank == 1:
        os._exit(0)
    hvd.allreduce(torch.ones(2), name="last")
    print("no rank was lost")


try:
    train(hvd.elastic.TorchState(model, optimizer, batch=20 + rank, objects={"a": rank}, sampler=sampler), factor=2)
except hvd.HorovodInternalError as error:
    found["lost"] = [
        type(error).__name__,
        "rank 1" in str(error) and "ringrun --min-np N" in str(error),
    ]
with open(os.path.join(sys.argv[1], str(rank)), "w") as file:
    json.dump(found, file)
os._exit(0)
