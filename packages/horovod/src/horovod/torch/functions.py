"""Broadcasts of parameters, optimizer state and objects, with Horovod's signatures."""

from __future__ import annotations

from typing import Any

import ringcore
import ringcore_torch as ring
import torch
from ringcore_torch import broadcast_parameters

from horovod.common.process_sets import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give every rank's optimizer the root's state.

    Args:
        optimizer: Over the same parameters on every rank.
        root_rank: Rank whose state wins.
        model: Unused: no step is taken to find out what the state looks like. But as after Horovod's, which takes one
            with gradients of zero, parameters have a gradient where the optimizer had no state yet.
    """
    del model
    if not optimizer.state:
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
    ring.broadcast_optimizer_state(optimizer, root_rank)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object, on every rank."""
    return ringcore.broadcast_object(obj, root_rank, name=name, process_set=process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, in the order of the ranks."""
    return ringcore.allgather_object(obj, name=name, process_set=process_set)
