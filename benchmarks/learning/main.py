"""Nets learn from gradients of which less is sent: nox -s learning.

A net of three layers reads scanned digits, and a small transformer guesses the next character of this repository's
documentation. Prints the mean loss over five seeds and their spread, and ends with an error where one way's mean is
further from that of whole gradients than these spread. By Adam, in so few steps, the transformer learns more slowly
from a small part of its gradients: there only those that are whole but for rounding are held to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import ringcore_torch as ring
import torch
from nets import Characters, Digits

STEPS, SEEDS = 150, 5
WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "whole": dict,
    "int8": lambda: {"compression": ring.Compression.int8},
    "int8, errors kept": lambda: {"compression": ring.Compression.int8, "error_feedback": True},
    "int4": lambda: {"compression": ring.Compression.int4},
    "int4, errors kept": lambda: {"compression": ring.Compression.int4, "error_feedback": True},
    "powersgd(4)": lambda: {"compression": ring.Compression.powersgd(4)},
    "topk(0.1)": lambda: {"compression": ring.Compression.topk(0.1)},
    "onebit": lambda: {"compression": ring.Compression.onebit()},
    "powersgd, 50 whole": lambda: {"compression": ring.Compression.powersgd(4, warmup_steps=50)},
    "topk, 50 whole": lambda: {"compression": ring.Compression.topk(0.1, warmup_steps=50)},
    "onebit, 50 whole": lambda: {"compression": ring.Compression.onebit(warmup_steps=50)},
}


# By what each is trained, and the ways that are held to the spread of whole gradients.
TASKS: dict[type[Digits] | type[Characters], tuple[Callable[[Any], torch.optim.Optimizer], tuple[str, ...]]] = {
    Digits: (
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5),
        ("int8, errors kept", "int4, errors kept", "powersgd(4)", "topk(0.1)", "onebit"),
    ),
    Characters: (
        lambda parameters: torch.optim.Adam(parameters, lr=3e-3), ("int8", "int8, errors kept", "int4, errors kept"),
    ),
}  # fmt: skip


def loss_after(task: type[Digits] | type[Characters], seed: int, options: dict[str, Any]) -> float:
    """What is left when all ranks have trained a net together."""
    torch.manual_seed(seed)
    model = task()
    optimizer = ring.DistributedOptimizer(TASKS[task][0](model.parameters()), model.named_parameters(), **options)
    generator = torch.Generator().manual_seed(100 * seed + ring.rank())
    for _ in range(STEPS):
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
    worse = []
    for task, (_, held) in TASKS.items():
        whole: list[float] = []
        for way, options in WAYS.items():
            losses = [loss_after(task, seed, options()) for seed in range(SEEDS)]
            whole = whole or losses
            mean, spread = sum(losses) / SEEDS, max(losses) - min(losses)
            if ring.rank() == 0:
                print(f"{task.__name__:12} {way:20} {mean:.4f} +- {spread / 2:.4f}", flush=True)
            if way in held and mean > max(whole) + max(whole) - min(whole):
                worse.append(f"{task.__name__} by {way}")
    if worse and ring.rank() == 0:
        print(f"worse than whole gradients: {', '.join(worse)}")
    ring.shutdown()
    return len(worse)


if __name__ == "__main__":
    sys.exit(main())
