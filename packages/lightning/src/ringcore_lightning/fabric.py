"""The strategy "ring" of Fabric."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ringcore_lightning.strategies import RingStrategyMixin
from ringcore_lightning.synchronization import ModuleSynchronization


class _Synchronizations(weakref.WeakKeyDictionary[torch.nn.Module, ModuleSynchronization]):
    """Of the modules that this process has set up; one that is spawned has none."""

    def __reduce__(self) -> Any:
        return _Synchronizations, ()


class FabricRingMixin(RingStrategyMixin):
    """Fabric's "ring"."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._synchronizations = _Synchronizations()
        self._backward_sync_control = _SyncControl(self._synchronizations)

    def setup_module(self: Any, module: torch.nn.Module) -> torch.nn.Module:
        """Watch the module's gradients; it is not wrapped."""
        synchronization = ModuleSynchronization(module, self._compression, broadcast_buffers=self._broadcast_buffers)
        self._synchronizations[module] = synchronization
        hook = _before_forward(weakref.ref(synchronization))
        module.register_forward_pre_hook(hook)
        return module

    def backward(self: Any, tensor: torch.Tensor, module: torch.nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Fabric's; then average the gradients."""
        synchronizations = list(self._synchronizations.values())
        try:
            super().backward(tensor, module, *args, **kwargs)
            for synchronization in synchronizations:
                synchronization.after_backward()
        except BaseException:
            for synchronization in synchronizations:
                synchronization.abandon()
            raise


def _before_forward(synchronization: weakref.ref[ModuleSynchronization]) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        owner = synchronization()
        if owner is not None:
            owner.before_forward(training=torch.is_grad_enabled())

    return hook


class _SyncControl:
    def __init__(self, synchronizations: _Synchronizations) -> None:
        self._synchronizations = synchronizations

    def no_backward_sync(self, module: torch.nn.Module, enabled: bool) -> AbstractContextManager[None]:
        """Inside, the module's gradients are only added up."""
        return self._synchronizations[module].no_sync() if enabled else contextlib.nullcontext()
