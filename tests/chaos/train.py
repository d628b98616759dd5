"""A training job for `run.py`, and its replay: what each step does depends on the step and on how many ranks there are.

The state tells how many ranks each step had. With RINGCORE_DETERMINISTIC the sums do not depend on where the ranks are,
so that a replay that is given these numbers comes to the same bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import ringcore
import ringcore_torch as ring
import torch
from ringcore_torch import elastic

WIDTH = 256


def make_model() -> torch.nn.Module:
    """Parameters small and large."""
    torch.manual_seed(7)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)]
    return torch.nn.Sequential(*layers)


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """One with a state."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def loss_of(model: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
    """Of the samples that a rank has in a step."""
    made = torch.Generator().manual_seed(1000 * step + rank)
    samples = torch.randn(8, WIDTH, generator=made)
    return (model(samples) - samples.sum(dim=1, keepdim=True)).square().mean()


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Tells any difference of a bit."""
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


def next_curve(curve: str, loss: torch.Tensor) -> str:
    """The digest of a loss curve with one more loss."""
    return hashlib.sha256(curve.encode() + loss.numpy().tobytes()).hexdigest()


def leave_word(name: str, text: str) -> None:
    """Whole or not at all."""
    with open(f"{name}.{os.getpid()}", "w") as file:
        file.write(text)
    os.rename(f"{name}.{os.getpid()}", name)


def train() -> None:
    """Until the file `stop` is there."""
    torch.set_num_threads(1)
    leave_word(f"pid.{os.getpid()}", os.environ["RANK"])
    ring.init()
    model = make_model()
    optimizer = ring.DistributedOptimizer(make_optimizer(model), named_parameters=model.named_parameters())

    @elastic.run
    def go_on(state: Any) -> None:
        while True:
            stop = ring.allreduce(torch.tensor([float(os.path.exists("stop"))]), op=ring.Max, name="stop")
            if stop[0]:
                break
            step, size = len(state.sizes), ring.size()
            optimizer.zero_grad()
            loss = loss_of(model, step, ring.rank())
            loss.backward()
            optimizer.step()
            state.curve = next_curve(state.curve, ring.allreduce(loss.detach(), name="loss"))
            state.sizes += bytes([size])
            if ring.rank() == 0:
                leave_word("progress", f"{len(state.sizes)} {size}")
            state.commit()
        if ring.rank() == 0:
            told = {"sizes": list(state.sizes), "curve": state.curve, "weights": digest(model.parameters())}
            leave_word("result", json.dumps(told))

    go_on(elastic.TorchState(model, optimizer, sizes=b"", curve=""))


def replay() -> None:
    """The steps of `result`, by the first ranks of a job whose ranks stay."""
    torch.set_num_threads(1)
    ring.init()
    with open("result") as file:
        sizes: list[int] = json.load(file)["sizes"]
    sets = {size: ring.add_process_set(range(size)) for size in range(1, ring.size() + 1)}
    model = make_model()
    optimizer = make_optimizer(model)
    curve = ""
    for step, size in enumerate(sizes):
        if step == 0 or size > sizes[step - 1]:
            ring.broadcast_parameters(model.state_dict(), root_rank=0)
            ring.broadcast_optimizer_state(optimizer, root_rank=0)
        if ring.rank() >= size:
            continue
        optimizer.zero_grad()
        loss = loss_of(model, step, ring.rank())
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = ring.allreduce(parameter.grad, process_set=sets[size])
        optimizer.step()
        curve = next_curve(curve, ring.allreduce(loss.detach(), process_set=sets[size]))
    if ring.rank() == 0:
        leave_word("replayed", json.dumps({"sizes": sizes, "curve": curve, "weights": digest(model.parameters())}))
    ringcore.shutdown()


if __name__ == "__main__":
    modes: dict[str, Callable[[], None]] = {"train": train, "replay": replay}
    modes[sys.argv[1]]()
