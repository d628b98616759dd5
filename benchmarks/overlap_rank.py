"""One rank of the benchmark of overlap, on a host of its own; `overlap.py` starts it.

    python overlap_rank.py ringcore RANK SIZE ROOT_ADDRESS KEY_FILE layers|embedding STRATEGY...

A strategy is "alone", "backward" or "forward" (of DistributedOptimizer), "sharded", "sharded-backward" or
"sharded-forward" (of ShardedOptimizer), or "ddp".

Each strategy trains a copy of its own; they take turns, some steps at a time. Rank 0 prints one JSON line:
milliseconds a step. In the end all ranks of a strategy hold the same weights, and all strategies the same but for
rounding.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
from network_rank import PORT, ringcore_allreduce

WIDTH = 1024
BATCH = 192
ROUNDS = 4
STEPS = 4  # of a turn: the first one fills the pipeline, and is not counted


def layers() -> torch.nn.Module:
    """Eight layers."""
    parts: list[torch.nn.Module] = []
    for _ in range(8):
        parts += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
    return torch.nn.Sequential(*parts)


class Embedding(torch.nn.Module):
    """An embedding, whose gradient comes last and is needed first, before six layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(2 * WIDTH, WIDTH)
        self.rest = layers()[:12]  # type: ignore[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of as many words as there are rows."""
        words = (x[:, 0].abs() * 1000).long() % (2 * WIDTH)
        return self.rest(self.embedding(words))  # type: ignore[no-any-return]


class Trained:
    """A model, and how it takes a step."""

    def __init__(self, strategy: str, make: Any, inputs: torch.Tensor) -> None:
        torch.manual_seed(0)
        self.model: torch.nn.Module = make()
        self._called = self.model
        self._inputs = inputs
        self._optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        if strategy in ("backward", "forward"):
            import ringcore_torch

            self._optimizer = ringcore_torch.DistributedOptimizer(
                self._optimizer, self.model.named_parameters(), overlap=strategy
            )
        elif strategy.startswith("sharded"):
            import ringcore_torch

            overlap: Any = strategy.partition("-")[2] or None
            self._optimizer = ringcore_torch.ShardedOptimizer(
                self._optimizer, self.model.named_parameters(), overlap=overlap
            )
        elif strategy == "ddp":
            self._called = torch.nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)

    def step(self) -> None:
        """Forward, backward, step."""
        self._optimizer.zero_grad()
        self._called(self._inputs).square().mean().backward()
        self._optimizer.step()

    def weights(self) -> torch.Tensor:
        """All of them; with an update that waits."""
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


def main() -> None:
    """Measure one model."""
    rank, size, root = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    ringcore_allreduce(rank, size, root, sys.argv[5])
    import ringcore

    torch.set_num_threads(1)
    if "ddp" in sys.argv:
        os.environ.update(MASTER_ADDR=root, MASTER_PORT=str(PORT + 1), GLOO_SOCKET_IFNAME="eth0")
        torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
    make = {"layers": layers, "embedding": Embedding}[sys.argv[6]]
    inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))
    trained = {strategy: Trained(strategy, make, inputs) for strategy in sys.argv[7:]}
    times: dict[str, list[float]] = {strategy: [] for strategy in trained}
    for turn in range(ROUNDS + 1):
        for strategy, one in trained.items():
            ringcore.barrier()
            one.step()
            begin = time.perf_counter()
            for _ in range(STEPS):
                one.step()
            taken = (time.perf_counter() - begin) / STEPS * 1e3
            one.weights()
            if turn > 0:  # the first one makes buffers, and tries plans
                times[strategy].append(taken)
    averaged = {strategy: one.weights() for strategy, one in trained.items() if strategy != "alone"}
    for strategy, weights in averaged.items():
        low = ringcore.allreduce(weights.numpy(), op=ringcore.Min, name="low")
        if not (low == weights.numpy()).all():
            raise SystemExit(f"{strategy}: the ranks hold different weights")
        torch.testing.assert_close(weights, next(iter(averaged.values())), rtol=1e-4, atol=1e-5)
    if rank == 0:
        nbytes = 4 * sum(one.numel() for one in next(iter(trained.values())).model.parameters())
        print(json.dumps({"milliseconds": times, "bytes": nbytes}), flush=True)
    if "ddp" in sys.argv:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
