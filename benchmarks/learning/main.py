"""Nets learn from gradients of which less is sent: nox -s learning.

A net of three layers reads scanned digits, and a small transformer guesses the next character of this repository's
documentation. Prints the mean loss over five seeds and their spread, writes them to results/learning.json, and ends
with an error where a way that is held to whole gradients ends above the worst of their seeds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ringcore_torch as ring
import torch
from nets import Characters, Digits

SEEDS = 5
RESULTS = Path(__file__).parent.parent / "results" / "learning.json"
WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "whole": dict,
    "int8": lambda: {"compression": ring.Compression.int8},
    "int8, errors kept": lambda: {"compression": ring.Compression.int8, "error_feedback": True},
    "int4": lambda: {"compression": ring.Compression.int4},
    "int4, errors kept": lambda: {"compression": ring.Compression.int4, "error_feedback": True},
    "powersgd(4)": lambda: {"compression": ring.Compression.powersgd(4)},
    "topk(0.1)": lambda: {"compression": ring.Compression.topk(0.1)},
    "onebit": lambda: {"compression": ring.Compression.onebit()},
    "powersgd(8)": lambda: {"compression": ring.Compression.powersgd(8)},
}
HELD = ("int8, errors kept", "int4, errors kept", "powersgd(8)", "topk(0.1)", "onebit")


# For how many steps, and by what, each is trained.
TASKS: dict[type[Digits] | type[Characters], tuple[int, Callable[[Any], torch.optim.Optimizer]]] = {
    Digits: (150, lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5)),
    Characters: (600, lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.5)),
}


def loss_after(task: type[Digits] | type[Characters], seed: int, options: dict[str, Any]) -> float:
    """What is left when all ranks have trained a net together."""
    torch.manual_seed(seed)
    model = task()
    steps, make = TASKS[task]
    optimizer = ring.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
    generator = torch.Generator().manual_seed(100 * seed + ring.rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(generator).backward()
        optimizer.step()
    with torch.no_grad():
        return float(model(None))


def main() -> int:
    """Train each way, and compare."""
    os.environ["RINGCORE_TRANSPORT"] = "tcp"  # in shared memory nothing is quantised
    ring.init()
    torch.set_num_threads(1)
    found: dict[str, dict[str, list[float]]] = {}
    worse = []
    for task in TASKS:
        losses = found[task.__name__] = {}
        for way, options in WAYS.items():
            losses[way] = [loss_after(task, seed, options()) for seed in range(SEEDS)]
            mean, low, high = sum(losses[way]) / SEEDS, min(losses[way]), max(losses[way])
            if ring.rank() == 0:
                print(f"{task.__name__:12} {way:20} {mean:.4f}, {low:.4f} to {high:.4f}", flush=True)
            if way in HELD and mean > max(losses["whole"]):
                worse.append(f"{task.__name__} by {way}")
    if ring.rank() == 0:
        RESULTS.write_text(json.dumps(found) + "\n")
        if worse:
            print(f"worse than whole gradients: {', '.join(worse)}")
    ring.shutdown()
    return len(worse)


if __name__ == "__main__":
    sys.exit(main())
