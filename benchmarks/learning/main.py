"""A net of three layers learns from gradients of which less is sent: nox -s learning.

Prints the mean loss over five seeds and their spread, and ends with an error where one way's mean is further from that
of whole gradients than these spread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import ringcore_torch as ring
import torch

STEPS, SEEDS, BATCH = 150, 5, 32
WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "whole": dict,
    "int8": lambda: {"compression": ring.Compression.int8},
    "int8, errors kept": lambda: {"compression": ring.Compression.int8, "error_feedback": True},
    "int4": lambda: {"compression": ring.Compression.int4},
    "int4, errors kept": lambda: {"compression": ring.Compression.int4, "error_feedback": True},
    "powersgd(4)": lambda: {"compression": ring.Compression.powersgd(4)},
    "topk(0.1)": lambda: {"compression": ring.Compression.topk(0.1)},
    "onebit": lambda: {"compression": ring.Compression.onebit()},
}
HELD_TO_IT = {way for way in WAYS if way not in ("int4", "int8")}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Ten patterns of 8 x 8, each shown many times in noise."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 64, generator=generator)
    labels = torch.arange(10).repeat(60)
    return patterns[labels] + 1.2 * torch.randn(len(labels), 64, generator=generator), labels


def loss_after(seed: int, options: dict[str, Any]) -> float:
    """What is left when all ranks have trained a net together."""
    torch.manual_seed(seed)
    x, y = data()
    hidden = [torch.nn.Linear(64, 160), torch.nn.ReLU(), torch.nn.Linear(160, 80), torch.nn.ReLU()]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(80, 10))
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), **options
    )
    generator = torch.Generator().manual_seed(100 * seed + ring.rank())
    for _ in range(STEPS):
        chosen = torch.randint(len(x), (BATCH,), generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(x), y))


def main() -> int:
    """Train each way, and compare."""
    os.environ["RINGCORE_TRANSPORT"] = "tcp"  # in shared memory nothing is quantised
    ring.init()
    torch.set_num_threads(1)
    whole: list[float] = []
    worse = []
    for way, options in WAYS.items():
        losses = [loss_after(seed, options()) for seed in range(SEEDS)]
        whole = whole or losses
        mean, spread = sum(losses) / SEEDS, max(losses) - min(losses)
        if ring.rank() == 0:
            print(f"{way:20} {mean:.4f} +- {spread / 2:.4f}", flush=True)
        if way in HELD_TO_IT and mean > max(whole) + max(whole) - min(whole):
            worse.append(way)
    ring.shutdown()
    if worse and ring.rank() == 0:
        print(f"worse than whole gradients: {', '.join(worse)}")
    return len(worse)


if __name__ == "__main__":
    sys.exit(main())
