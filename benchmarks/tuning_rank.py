"""One rank of the benchmark of tuning; `tuning.py` starts it.

    python tuning_rank.py ringcore RANK SIZE ROOT_ADDRESS KEY_FILE BATCH

Rank 0 prints one JSON line: milliseconds a step of either optimizer and of computing alone, what was chosen, and after
how many steps. In the end all ranks hold the same weights.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from network_rank import ringcore_allreduce

WIDTH, LAYERS = 512, 8  # 8 MiB of gradients
ROUNDS = 5
STEPS = 3  # of a turn, behind one that is not counted
MOST_STEPS = 1000


class Trained:
    """A model of its own, and how it takes a step."""

    def __init__(self, inputs: torch.Tensor, *, averaged: bool, tuned: bool = False) -> None:
        import ringcore_torch

        torch.manual_seed(0)
        parts: list[torch.nn.Module] = []
        for _ in range(LAYERS):
            parts += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
        self.model = torch.nn.Sequential(*parts)
        self._inputs = inputs
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        if averaged:
            self.optimizer = ringcore_torch.DistributedOptimizer(self.optimizer, self.model.named_parameters())
            self.tuner = self.optimizer._tuner
            if not tuned:
                self.optimizer._tuner = None

    def step(self) -> None:
        """Forward, backward, step."""
        self.optimizer.zero_grad()
        self.model(self._inputs).square().mean().backward()
        self.optimizer.step()


def main() -> None:
    """Tune, then measure."""
    rank, size = int(sys.argv[2]), int(sys.argv[3])
    ringcore_allreduce(rank, size, sys.argv[4], sys.argv[5])
    import ringcore

    torch.set_num_threads(1)
    inputs = torch.randn(int(sys.argv[6]), WIDTH, generator=torch.Generator().manual_seed(rank))
    trained = {
        "alone": Trained(inputs, averaged=False),
        "static": Trained(inputs, averaged=True),
        "tuned": Trained(inputs, averaged=True, tuned=True),
    }
    tuner = trained["tuned"].tuner
    steps = 0
    while not tuner.decided and steps < MOST_STEPS:
        trained["tuned"].step()
        steps += 1
    times: dict[str, list[float]] = {name: [] for name in trained}
    for turn in range(ROUNDS + 1):
        for name in list(trained) if turn % 2 else reversed(trained):
            ringcore.barrier()
            trained[name].step()
            begin = time.perf_counter()
            for _ in range(STEPS):
                trained[name].step()
            if turn > 0:  # the first one makes buffers, and tries plans
                times[name].append((time.perf_counter() - begin) / STEPS * 1e3)
    for name in ("static", "tuned"):
        weights = torch.cat([parameter.detach().flatten() for parameter in trained[name].model.parameters()]).numpy()
        if not (ringcore.allreduce(weights, op=ringcore.Min, name="low") == weights).all():
            raise SystemExit(f"{name}: the ranks hold different weights")
    if rank == 0:
        print(json.dumps({"milliseconds": times, "chosen": str(tuner.way), "steps_to_decide": steps}), flush=True)


if __name__ == "__main__":
    main()
