"""The state of a training process of PyTorch: models, optimizers, samplers, and objects."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from ringcore import rank

from horovod.common.elastic import ObjectState
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = ["TorchState"]


def _sync_sampler(sampler: ElasticSampler) -> None:
    sampler.load_state_dict(broadcast_object(sampler.state_dict()))


# What has a state of its own, and how all ranks get that of rank 0.
_SYNC: list[tuple[type, Callable[[Any], Any]]] = [
    (torch.nn.Module, lambda model: broadcast_parameters(model.state_dict(), root_rank=0)),
    (torch.optim.Optimizer, lambda optimizer: broadcast_optimizer_state(optimizer, root_rank=0)),
    (ElasticSampler, _sync_sampler),
]


def _sync_of(value: Any) -> Callable[[Any], Any] | None:
    return next((sync for kind, sync in _SYNC if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """Keeps models, optimizers and samplers by their `state_dict()`, and other objects as they are.

    Args:
        model: Or several, by other names.
        optimizer: Or several, by other names.
        attributes: By name; they become attributes of the state.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **attributes: Any
    ) -> None:
        attributes |= {"model": model, "optimizer": optimizer}
        self._kept: dict[str, Any] = {}  # the state of each of those that have one
        for name in [name for name, value in attributes.items() if _sync_of(value) is not None]:
            self._kept[name] = None
            setattr(self, name, attributes.pop(name))
        super().__init__(broadcast_object, rank, **attributes)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in vars(self).get("_kept", ()):
            self._keep(name)

    def _keep(self, name: str) -> None:
        self._kept[name] = copy.deepcopy(getattr(self, name).state_dict())

    def save(self) -> None:  # noqa: D102
        for name in self._kept:
            self._keep(name)
        super().save()

    def restore(self) -> None:  # noqa: D102
        for name, kept in self._kept.items():
            getattr(self, name).load_state_dict(copy.deepcopy(kept))  # an optimizer goes on with these tensors
        super().restore()

    def sync(self) -> None:  # noqa: D102
        for name in self._kept:
            value = getattr(self, name)
            sync = _sync_of(value)
            if sync is not None:
                sync(value)
                self._keep(name)
        super().sync()
