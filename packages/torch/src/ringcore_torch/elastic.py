"""Elastic training of PyTorch, see `ringcore.elastic`: a state of models, optimizers, samplers and objects."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from ringcore import ProcessSet
from ringcore.elastic import (
    ElasticSampler,
    Handler,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    run,
)

from ringcore_torch.state import map_tensors, start_optimizer_state, start_parameters

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]


def _save(value: Any, kept: Any) -> Any:
    state = value.state_dict()
    for name, part in state.items():
        state[name] = _copy(part, kept.get(name) if kept else None)
    return state


def _copy(value: Any, kept: Any) -> Any:
    """A copy, in the memory of an earlier one where that fits: new memory takes longer than what is written there."""
    if type(value) is torch.Tensor or type(value) is torch.nn.Parameter:
        alike = ("shape", "dtype", "device", "layout")
        if type(kept) is torch.Tensor and all(getattr(kept, what) == getattr(value, what) for what in alike):
            return kept.copy_(value.detach())
        return value.detach().clone()
    if type(value) is dict:
        before = kept if type(kept) is dict else {}
        return {name: _copy(part, before.get(name)) for name, part in value.items()}
    return copy.deepcopy(value)


def _restore(value: Any, kept: Any) -> None:
    value.load_state_dict(copy.deepcopy(kept))  # An optimizer goes on with these tensors.


def _describe(model: torch.nn.Module) -> dict[str, str]:
    parts = model.state_dict().items()
    return {name: f"{v.dtype} of shape {tuple(v.shape)}" for name, v in parts if isinstance(v, torch.Tensor)}


def _sync_model(model: torch.nn.Module, process_set: ProcessSet, root_rank: int = 0) -> Callable[[], None]:
    return start_parameters(model.state_dict(), root_rank, process_set=process_set)


def _outline_of_optimizer(optimizer: torch.optim.Optimizer) -> str:
    tensors: list[torch.Tensor] = []
    map_tensors(optimizer.state_dict(), tensors.append, torch.Tensor)
    return str([f"{tensor.dtype}{tuple(tensor.shape)}" for tensor in tensors])


def _sync_optimizer(optimizer: torch.optim.Optimizer, process_set: ProcessSet, root_rank: int = 0) -> Callable[[], Any]:
    # Who has a state already keeps one, too.
    lacks_room = not optimizer.state and all(p.is_cpu for group in optimizer.param_groups for p in group["params"])
    state, load = start_optimizer_state(optimizer, root_rank, process_set=process_set)

    def wait() -> Any:
        # The first touch of new memory takes about as long as the state, which comes meanwhile.
        room = map_tensors(state, _touched, torch.Tensor) if lacks_room else None
        load()
        return room

    return wait


def _touched(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like).zero_()


_OF_MODELS = Handler(_save, _restore, _sync_model, describe=_describe, outline=lambda model: repr(_describe(model)))
_OF_OPTIMIZERS = Handler(_save, _restore, _sync_optimizer, outline=_outline_of_optimizer)


class TorchState(ObjectState):
    """Keeps models and optimizers by their `state_dict()`, samplers, and other objects as they are.

    Args:
        model: Or several, by other names.
        optimizer: Or several, by other names.
        attributes: By name; they become attributes of the state.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **attributes: Any
    ) -> None:
        super().__init__(**attributes, model=model, optimizer=optimizer)

    def handler_of(self, value: Any) -> Handler | None:  # noqa: D102
        if isinstance(value, torch.nn.Module):
            return _OF_MODELS
        return _OF_OPTIMIZERS if isinstance(value, torch.optim.Optimizer) else super().handler_of(value)
