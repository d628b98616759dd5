"""Models drawn at random, whose parameters are read in many ways, and what tests that compare bits start them on."""

from __future__ import annotations

import random

import torch
from ringcore_torch.pending import PendingParameter

from support.on_ranks import Start

# Ranks that share no memory are hosts of their own, and between hosts the first operations of a size try several
# plans. Which of them is the quickest differs from run to run, and each adds three numbers up in an order of its own:
# so two trainings without any overlap have other bits as well. What has a priority is tried apart, so that its
# plan may be another one. The sum of two numbers has one order.
THREE_IN_ORDER = Start(3, "tcp", variables=(("RINGCORE_DETERMINISTIC", "1"),))


class Tied(torch.nn.Module):
    """Reads a parameter of one module in another one, and leaves one out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.unused = torch.nn.Parameter(torch.zeros(3))
        self.scale = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(self.inner(x), self.inner.weight.t()) * self.scale


class Attention(torch.nn.Module):
    """Hands the parameters of a module to a function: the module itself is never called."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = torch.nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[None]
        return rows[0] + self.inner(rows, rows, rows)[0][0]


class Recurrent(torch.nn.Module):
    """Its weights are handed over in a list."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = torch.nn.LSTM(width, width, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x[None])[0][0]


def drawn_model(draw: random.Random) -> torch.nn.Module:
    width = draw.choice([4, 8, 12])
    layers: list[torch.nn.Module] = [torch.nn.Linear(6, width)]
    for _ in range(draw.randint(1, 4)):
        kind = draw.choice(["linear", "wide", "norm", "tied", "attention", "recurrent", "again"])
        if kind == "linear":
            layers.append(torch.nn.Linear(width, width))
        elif kind == "wide":
            layers += [torch.nn.Linear(width, 3000), torch.nn.Tanh(), torch.nn.Linear(3000, width, bias=False)]
        elif kind == "norm":
            layers.append(torch.nn.LayerNorm(width))
        elif kind == "again":
            layers.append(layers[-1] if isinstance(layers[-1], torch.nn.LayerNorm) else torch.nn.Tanh())
        else:
            layers.append({"tied": Tied, "attention": Attention, "recurrent": Recurrent}[kind](width))
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 2))


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def is_pending(model: torch.nn.Module) -> bool:
    return any(type(parameter) is PendingParameter for parameter in model.parameters())
