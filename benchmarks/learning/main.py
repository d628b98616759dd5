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
from pathlib import Path
from typing import Any

import ringcore_torch as ring
import torch
from sklearn.datasets import load_digits

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


class Digits(torch.nn.Module):
    """A net of three layers, and its loss on images of one batch."""

    HELD = ("int8, errors kept", "int4, errors kept", "powersgd(4)", "topk(0.1)", "onebit")

    @staticmethod
    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        """What it is trained by."""
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)

    def __init__(self) -> None:
        super().__init__()
        scanned = load_digits()
        self.images = torch.tensor(scanned.data, dtype=torch.float32) / 16
        self.labels = torch.tensor(scanned.target)
        hidden = [torch.nn.Linear(64, 160), torch.nn.ReLU(), torch.nn.Linear(160, 80), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*hidden, torch.nn.Linear(80, 10))

    def forward(self, generator: torch.Generator | None) -> torch.Tensor:
        """The loss on a batch; on everything, where there is no generator to choose one."""
        chosen = slice(None) if generator is None else torch.randint(len(self.images), (32,), generator=generator)
        return torch.nn.functional.cross_entropy(self.layers(self.images[chosen]), self.labels[chosen])


class Characters(torch.nn.Module):
    """A transformer of two layers, and its loss on pieces of a text."""

    LENGTH, WIDTH = 32, 64
    HELD = ("int8", "int8, errors kept", "int4, errors kept")

    @staticmethod
    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        """What it is trained by."""
        return torch.optim.Adam(parameters, lr=3e-3)

    def __init__(self) -> None:
        super().__init__()
        text = "".join(path.read_text() for path in sorted(Path("docs").glob("*.md")))
        known = sorted(set(text))
        self.text = torch.tensor([known.index(character) for character in text[:100_000]])
        self.characters = torch.nn.Embedding(len(known), self.WIDTH)
        self.places = torch.nn.Embedding(self.LENGTH, self.WIDTH)
        layer = torch.nn.TransformerEncoderLayer(self.WIDTH, 4, 2 * self.WIDTH, 0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2)
        self.last = torch.nn.Linear(self.WIDTH, len(known))

    def forward(self, generator: torch.Generator | None) -> torch.Tensor:
        """The loss on some pieces; on many that are always the same, where there is no generator to choose them."""
        count, chooser = (16, generator) if generator else (256, torch.Generator().manual_seed(1))
        begins = torch.randint(len(self.text) - self.LENGTH - 1, (count, 1), generator=chooser)
        pieces = self.text[begins + torch.arange(self.LENGTH + 1)]
        before, after = pieces[:, :-1], pieces[:, 1:]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(self.LENGTH)
        seen = self.layers(self.characters(before) + self.places.weight, mask=mask, is_causal=True)
        return torch.nn.functional.cross_entropy(self.last(seen).flatten(0, 1), after.flatten())


def loss_after(task: type[Digits] | type[Characters], seed: int, options: dict[str, Any]) -> float:
    """What is left when all ranks have trained a net together."""
    torch.manual_seed(seed)
    model = task()
    optimizer = ring.DistributedOptimizer(task.optimizer(model.parameters()), model.named_parameters(), **options)
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
    for task in (Digits, Characters):
        whole: list[float] = []
        for way, options in WAYS.items():
            losses = [loss_after(task, seed, options()) for seed in range(SEEDS)]
            whole = whole or losses
            mean, spread = sum(losses) / SEEDS, max(losses) - min(losses)
            if ring.rank() == 0:
                print(f"{task.__name__:12} {way:20} {mean:.4f} +- {spread / 2:.4f}", flush=True)
            if way in task.HELD and mean > max(whole) + max(whole) - min(whole):
                worse.append(f"{task.__name__} by {way}")
    if worse and ring.rank() == 0:
        print(f"worse than whole gradients: {', '.join(worse)}")
    ring.shutdown()
    return len(worse)


if __name__ == "__main__":
    sys.exit(main())
