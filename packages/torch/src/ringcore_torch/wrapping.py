"""Optimizers that keep their class and their state, and get methods of ours."""

from __future__ import annotations

from typing import Any

import torch

# What they do to a value depends on that value, its gradient and its own state alone, and on counts of steps.
BY_ELEMENT = (
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax,
    torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.ASGD,
)  # fmt: skip

# What they do to a parameter depends on that parameter, its gradient and its own state alone. Muon came with torch 2.9.
BY_PARAMETER: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.Adafactor, *((torch.optim.Muon,) if hasattr(torch.optim, "Muon") else ()),
)  # fmt: skip


def with_methods(optimizer: torch.optim.Optimizer, methods: type[torch.optim.Optimizer]) -> Any:
    """An optimizer of a subclass of `optimizer`'s own class, in which `methods` come first.

    It shares `param_groups` and `state` with the given one, so that schedulers and checkpoints go on working.
    """
    kind = type(optimizer.__class__.__name__, (methods, optimizer.__class__), {"__doc__": optimizer.__doc__})
    wrapped: Any = object.__new__(kind)
    # A scheduler that was attached before has put its own `step` on the instance; the wrapper's must win.
    wrapped.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    return wrapped
