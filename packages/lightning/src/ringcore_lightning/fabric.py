"""The strategies of Fabric."""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
from ringcore_torch.compression import Compression, Compressor

from ringcore_lightning.environment import environment_for
from ringcore_lightning.registration import strategies_of
from ringcore_lightning.synchronization import ModuleSynchronization, default_start_method

_Synchronizations = weakref.WeakKeyDictionary[torch.nn.Module, ModuleSynchronization]


class RingStrategyMixin:
    """Data-parallel training with Fabric whose gradients ringcore averages.

    Args:
        accelerator: Fabric's, as `parallel_devices`, `cluster_environment`, `checkpoint_io`, `precision`.
        compression: What is sent of the gradients: `ringcore_torch.Compression.fp16` or `bf16` halves float32.
        broadcast_buffers: Give all ranks rank 0's buffers before each pass in training mode.
        timeout: Of an operation.
        start_method: How ranks are started, if no launcher did: "popen", "spawn", "fork".
    """

    def __init__(
        self,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision: Any = None,
        *,
        compression: type[Compressor] = Compression.none,
        broadcast_buffers: bool = True,
        timeout: timedelta | None = None,
        start_method: str | None = None,
    ) -> None:
        options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=environment_for(cluster_environment, _fabric_class(type(self), "ClusterEnvironment")),
            checkpoint_io=checkpoint_io,
            precision=precision,
            process_group_backend="ring",
            start_method=start_method or default_start_method(),
            **options,
        )
        self._compression = compression
        self._broadcast_buffers = broadcast_buffers
        self._watch_nothing()

    def _watch_nothing(self) -> None:
        self._synchronizations: _Synchronizations = weakref.WeakKeyDictionary()
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

    def __reduce__(self: Any) -> Any:
        state = {key: value for key, value in vars(self).items() if not key.endswith(("_synchronizations", "_control"))}
        return _restored, (self.ddp_module, 0, state)


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


class RingDDPStrategyMixin:
    """Fabric's "ddp" over ringcore's backend of torch.distributed. Takes its arguments."""

    def __init__(self, *args: Any, cluster_environment: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("process_group_backend", "ring")
        environment = environment_for(cluster_environment, _fabric_class(type(self), "ClusterEnvironment"))
        super().__init__(*args, cluster_environment=environment, **kwargs)

    def __reduce__(self: Any) -> Any:
        return _restored, (self.ddp_module, 1, vars(self))


def _restored(module: str, index: int, state: dict[str, Any]) -> Any:
    """A strategy in a process that was spawned: its class is made there."""
    strategy = strategies_of(module)[index]
    made = object.__new__(strategy)
    made.__dict__.update(state)
    if index == 0:
        made._watch_nothing()
    return made


def make_strategies(ddp: type[Any]) -> tuple[type[Any], type[Any]]:
    """The classes of "ring" and "ring_ddp" on top of a package's `DDPStrategy`."""
    names = {"__module__": "ringcore_lightning", "ddp_module": ddp.__module__.rpartition(".")[0]}
    return (
        type("FabricRingStrategy", (RingStrategyMixin, ddp), {**names, "__doc__": RingStrategyMixin.__doc__}),
        type("FabricRingDDPStrategy", (RingDDPStrategyMixin, ddp), {**names, "__doc__": RingDDPStrategyMixin.__doc__}),
    )


def _fabric_of(strategy: type[Any]) -> str:
    standalone = any(base.__module__.startswith("lightning_fabric.") for base in strategy.__mro__)
    return "lightning_fabric" if standalone else "lightning.fabric"


def _fabric_class(strategy: type[Any], name: str) -> Any:
    module = "plugins.environments" if name == "ClusterEnvironment" else "strategies.strategy"
    return getattr(importlib.import_module(f"{_fabric_of(strategy)}.{module}"), name)
