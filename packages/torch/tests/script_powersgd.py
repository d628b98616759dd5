"""PyTorch's own PowerSGD hook beside ours, from the same beginning, step by step: script_powersgd.py FOLDER."""

from __future__ import annotations

import copy
import os
import sys
from typing import Any

import numpy as np
import ringcore_torch as ring
import torch
import torch.distributed as dist
from ringcore import adapter
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

RANK, STEPS = 3, 12


def load_queries(exchange: adapter.Exchange, state: Any, model: torch.nn.Module) -> None:
    """The right matrices that the hook is about to draw, in the order of its bucket."""
    seed = np.random.RandomState()
    seed.set_state(state.rng.get_state())
    generator = torch.Generator().manual_seed(int(seed.randint(1_000_000_000)))
    queries = {
        name: torch.randn(1, one.shape[1], RANK, generator=generator, dtype=one.dtype)[0].numpy()
        for name, one in reversed(list(model.named_parameters()))
        if one.ndim == 2 and min(one.shape) > RANK
    }
    exchange.load_state_dict({"errors": {}, "queries": queries})


def main(folder: str) -> None:
    """Train both."""
    ring.init()
    torch.manual_seed(0)
    body = [torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 50), torch.nn.Tanh()]
    model = torch.nn.Sequential(*body, torch.nn.Linear(50, 3)).double()
    theirs = copy.deepcopy(model)
    store = dist.FileStore(os.path.join(folder, "store"), ring.size())
    dist.init_process_group("gloo", store=store, rank=ring.rank(), world_size=ring.size())
    parallel = torch.nn.parallel.DistributedDataParallel(theirs)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
    parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    exchange = ring.Compression.powersgd(RANK)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9)
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ours = ring.DistributedOptimizer(plain, model.named_parameters())
    generator = torch.Generator().manual_seed(ring.rank() + 5)
    for step in range(STEPS):
        x = torch.randn(16, 40, generator=generator, dtype=torch.float64)
        y = torch.randn(16, 3, generator=generator, dtype=torch.float64)
        if step == 2:  # the first two send everything
            ours = ring.DistributedOptimizer(plain, model.named_parameters(), compression=exchange)
            load_queries(exchange, state, theirs)
        for optimizer, net in ((ours, model), (reference, parallel)):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
        for own, other in zip(model.parameters(), theirs.parameters(), strict=True):
            assert (own - other).abs().max() < 1e-9, f"step {step}"
    assert len(exchange.state_dict()["errors"]) == 2
    print(f"equal in {STEPS} steps", flush=True)
    ring.shutdown()
    os._exit(0)  # without the end of gloo's threads, which may abort


main(sys.argv[1])
