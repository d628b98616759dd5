"""One rank of the benchmark of losses over time, on a host of its own; `loss_over_time.py` starts it.

    python loss_over_time_rank.py ringcore RANK SIZE ROOT_ADDRESS KEY_FILE WAY SECONDS

Rank 0 prints one JSON line: the seconds that training took so far, the steps, and the loss then, time after time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import ringcore
import ringcore_torch as ring
import torch
from learning.nets import Characters
from network_rank import PORT, ringcore_allreduce

WIDTH = 256
SLOW = "a slow rank"  # the last one pauses at each step, in the ways that say so
PAUSE_S = 1.0
LOOKS_S = 5.0  # between two looks at ranks that go on without each other
LOCAL_STEPS, OUTER_STEPS = 8, 16  # of LocalSGD and of DiLoCo, between two meetings
Trained = tuple[torch.nn.Module, Any]  # what is called in a forward, and its optimizer


def inner(model: torch.nn.Module) -> torch.optim.Optimizer:
    """What every way trains by."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def averaged(**options: Any) -> Callable[[torch.nn.Module], Trained]:
    """Gradients are averaged at each step."""
    return lambda model: (model, ring.DistributedOptimizer(inner(model), model.named_parameters(), **options))


def local(model: torch.nn.Module) -> Trained:
    """Parameters are averaged now and then."""
    return model, ring.LocalSGD(inner(model), model.named_parameters(), every=LOCAL_STEPS)


def diloco(model: torch.nn.Module) -> Trained:
    """An outer optimizer steps now and then, by what all ranks have moved."""
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    named = model.named_parameters()
    return model, ring.DiLoCo(inner(model), outer, named, every=OUTER_STEPS, compression="int8")


def by_torch(model: torch.nn.Module) -> Trained:
    """DistributedDataParallel over gloo."""
    os.environ.update(MASTER_ADDR=sys.argv[4], MASTER_PORT=str(PORT + 1), GLOO_SOCKET_IFNAME="eth0")
    torch.distributed.init_process_group("gloo", rank=ringcore.rank(), world_size=ringcore.size())
    return torch.nn.parallel.DistributedDataParallel(model), inner(model)


def unawaited(staleness: int) -> Callable[[torch.nn.Module], Trained]:
    """A sum has the gradients of all ranks but one, whichever come first."""

    def wrap(model: torch.nn.Module) -> Trained:
        named, threshold = model.named_parameters(), ringcore.size() - 1
        return model, ring.AsyncOptimizer(inner(model), named, staleness=staleness, threshold=threshold)

    return wrap


# By way: how it is trained, and after how many steps the loss is looked at; none, where ranks make as many as they can.
WAYS: dict[str, tuple[Callable[[torch.nn.Module], Trained], int | None]] = {
    "float32": (averaged(), 5),
    "float32, servers": (averaged(), 5),
    "DistributedDataParallel": (by_torch, 5),
    "bf16": (averaged(compression="bf16"), 10),
    "int8": (averaged(compression="int8"), 10),
    "int4, errors kept": (averaged(compression="int4", error_feedback=True), 10),
    "powersgd(4)": (averaged(compression=ring.Compression.powersgd(4)), 10),
    "topk(0.1)": (averaged(compression=ring.Compression.topk(0.1)), 10),
    "onebit": (averaged(compression=ring.Compression.onebit()), 10),
    f"LocalSGD every {LOCAL_STEPS}": (local, LOCAL_STEPS),
    f"DiLoCo every {OUTER_STEPS}, int8": (diloco, OUTER_STEPS),
    f"float32, {SLOW}": (averaged(), 5),
    f"AsyncOptimizer, {SLOW}": (unawaited(0), None),
    f"AsyncOptimizer, staleness 1, {SLOW}": (unawaited(1), None),
}


def stepping(called: torch.nn.Module, optimizer: Any, looks: int | None, pause_s: float) -> Callable[[], int]:
    """What makes this rank's steps until the next look, and tells how many there were."""
    generator = torch.Generator().manual_seed(100 + ringcore.rank())

    def step() -> None:
        optimizer.zero_grad()
        called(generator).backward()
        time.sleep(pause_s)
        optimizer.step()

    def so_many() -> int:
        for _ in range(looks or 0):
            step()
        return looks or 0

    def so_long() -> int:
        before, end = optimizer.updates, time.monotonic() + LOOKS_S
        while time.monotonic() < end:
            step()
        optimizer.synchronize()
        return int(optimizer.updates - before)

    return so_many if looks else so_long


def curve(model: torch.nn.Module, train: Callable[[], int], seconds: float) -> list[tuple[float, int, float]]:
    """Train for so many seconds, in which looking at the loss is not counted."""
    points: list[tuple[float, int, float]] = []
    trained, steps = 0.0, 0
    while True:
        with torch.no_grad():
            points.append((trained, steps, float(model(None)) if ringcore.rank() == 0 else 0.0))
        # Ranks stop together, by the clock of the first.
        trained = ringcore.broadcast_object(trained)
        if trained >= seconds:
            return points
        ringcore.barrier()
        begin = time.perf_counter()
        steps += train()
        ringcore.barrier()
        trained += time.perf_counter() - begin


def main() -> None:
    """Train one way."""
    rank, size, root, key_file, way, seconds = int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:8]
    ringcore_allreduce(rank, size, root, key_file)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Characters(WIDTH)
    wrap, looks = WAYS[way]
    called, optimizer = wrap(model)
    pause_s = PAUSE_S if SLOW in way and rank == size - 1 else 0.0
    points = curve(model, stepping(called, optimizer, looks, pause_s), float(seconds))
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    if not torch.equal(ring.allreduce(weights, op=ring.Min), ring.allreduce(weights, op=ring.Max)):
        raise SystemExit(f"{way}: the ranks hold different weights")
    if rank == 0:
        print(json.dumps({"parameters": weights.numel(), "points": points}), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    ringcore.shutdown()


if __name__ == "__main__":
    main()
