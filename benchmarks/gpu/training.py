"""Training steps of ResNet-50 on a GPU, which ranks share where there are fewer: by ringcore and by PyTorch's own DDP.

    ringrun -np 2 python benchmarks/gpu/training.py

Each way trains a copy of its own in the same processes, in turns: ringcore's optimizer; DDP with gloo; DDP with NCCL
where each rank has a GPU; and without any communication. Rank 0 prints JSON lines: the milliseconds a step takes, the
median of the turns, and the least and the most of them. In the end the weights of all ranks must have the same bits.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ringcore_torch
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from models import MODELS

WARM_UP, STEPS, TURNS = 5, 5, 9
BATCH, SHAPE = 32, (3, 224, 224)


class Trained:
    """A model on this rank's GPU, and how it takes a step."""

    def __init__(self, way: str) -> None:
        torch.manual_seed(0)
        self.model = MODELS["resnet50"][0]().cuda()
        self.communicates = way != "alone"
        wrapped: torch.nn.Module = self.model
        optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        if way == "ringcore":
            optimizer = ringcore_torch.DistributedOptimizer(optimizer, self.model.named_parameters())
        elif self.communicates:
            group = dist.new_group(backend=way.rpartition(" ")[2])
            wrapped = torch.nn.parallel.DistributedDataParallel(
                self.model, process_group=group, gradient_as_bucket_view=True, broadcast_buffers=False
            )
        torch.manual_seed(1 + dist.get_rank())
        inputs = torch.randn(BATCH, *SHAPE, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            wrapped(inputs).square().mean().backward()
            optimizer.step()

        self.step: Callable[[], None] = step

    def same_on_all_ranks(self) -> bool:
        """Whether the weights have the same bits."""
        flat = torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()]).cpu()
        low, high = flat.clone(), flat.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        return bool((low == high).all())


def main() -> None:
    rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.backends.cudnn.benchmark = True
    ringcore_torch.init()
    dist.init_process_group("gloo")
    by_nccl = ["DDP nccl"] if size <= torch.cuda.device_count() else []
    ways = ["ringcore", "DDP gloo", *by_nccl, "alone"]
    trained = {way: Trained(way) for way in ways}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for one in trained.values():
        for _ in range(WARM_UP):
            one.step()
    for _ in range(TURNS):
        for way, one in trained.items():
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(STEPS):
                one.step()
            torch.cuda.synchronize()
            dist.barrier()
            taken[way].append((time.perf_counter() - begin) / STEPS * 1e3)
    for way, one in trained.items():
        if one.communicates and not one.same_on_all_ranks():
            raise SystemExit(f"{way}: the ranks' weights differ")
    if dist.get_rank() == 0:
        for way, times in taken.items():
            median, least, most = (round(of(times), 2) for of in (statistics.median, min, max))
            row = {"case": "training", "ranks": dist.get_world_size(), "by": way}
            print(json.dumps({**row, "median_ms": median, "least_ms": least, "most_ms": most}), flush=True)
    dist.destroy_process_group()
    ringcore_torch.shutdown()


main()
