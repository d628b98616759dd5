"""One rank of the training benchmark; `training.py` starts it under ringrun.

    python training_rank.py MODEL BATCH STEPS ROUNDS STRATEGY...

The strategies take turns in one process: each trains a copy of its own for STEPS steps, ROUNDS times over. "alone" does
not communicate. Rank 0 prints one JSON line: milliseconds a step, a list of rounds for each strategy. In the end all
ranks of a strategy that communicates must hold the same weights, bit by bit.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import ringcore
import torch
from models import MODELS
from torch import distributed

Step = Callable[[], None]


class Trained:
    """A model, and how it takes a step."""

    def __init__(self, strategy: str, name: str, batch: int) -> None:
        make, shape = MODELS[name]
        torch.manual_seed(0)
        self.model = make()
        wrapped: torch.nn.Module = self.model
        optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        if strategy == "ringcore":
            import ringcore_torch

            optimizer = ringcore_torch.DistributedOptimizer(optimizer, self.model.named_parameters())
        elif strategy == "ddp":
            wrapped = torch.nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        torch.manual_seed(1 + ringcore.rank())
        inputs = torch.randn(batch, *shape)

        def step() -> None:
            optimizer.zero_grad()
            wrapped(inputs).square().mean().backward()
            optimizer.step()

        self.step: Step = step

    def same_on_all_ranks(self) -> bool:
        """Whether the weights have the same bits."""
        flat = torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])
        low = ringcore.allreduce(flat.numpy(), op=ringcore.Min)
        return bool((low == flat.numpy()).all())


def main() -> None:
    """Measure one model."""
    name, batch, steps, rounds = sys.argv[1], *map(int, sys.argv[2:5])
    strategies = sys.argv[5:]
    torch.set_num_threads(1)
    ringcore.init()
    cores = sorted(os.sched_getaffinity(0))
    if ringcore.size() <= len(cores):
        os.sched_setaffinity(0, {cores[ringcore.rank()]})
    if "ddp" in strategies:
        distributed.init_process_group("gloo")
    trained = {strategy: Trained(strategy, name, batch) for strategy in strategies}
    for one in trained.values():
        for _ in range(3):
            one.step()
    times: dict[str, list[float]] = {strategy: [] for strategy in strategies}
    for _ in range(rounds):
        for strategy, one in trained.items():
            ringcore.barrier()
            begin = time.perf_counter()
            for _ in range(steps):
                one.step()
            ringcore.barrier()
            times[strategy].append((time.perf_counter() - begin) / steps * 1e3)
    for strategy, one in trained.items():
        if strategy != "alone" and not one.same_on_all_ranks():
            raise SystemExit(f"{strategy}: the ranks' weights differ")
    if ringcore.rank() == 0:
        count = sum(parameter.numel() for parameter in trained[strategies[0]].model.parameters())
        print(json.dumps({"parameters": count, "milliseconds": times}), flush=True)
    ringcore.barrier()
    os._exit(0)  # gloo may abort in its own end


if __name__ == "__main__":
    main()
