"""Makes the strategies known to `lightning` and to `pytorch_lightning`, which know nothing of each other."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from ringcore_lightning_registration import REGISTRIES, install

# Kind -> the modules that may have it, the preferred one first.
_MODULES = {
    "pytorch": ("lightning.pytorch.strategies", "pytorch_lightning.strategies"),
    "fabric": ("lightning.fabric.strategies", "lightning_fabric.strategies"),
}


@functools.cache
def _strategies_in(module: ModuleType) -> tuple[type[Any], type[Any]]:
    from ringcore_lightning.strategies import make_strategies

    ddp = importlib.import_module(f"{module.__name__}.ddp").DDPStrategy
    if module.__name__ in _MODULES["pytorch"]:
        from ringcore_lightning.trainer import TrainerRingMixin

        return make_strategies(ddp, TrainerRingMixin, "")
    from ringcore_lightning.fabric import FabricRingMixin

    return make_strategies(ddp, FabricRingMixin, "Fabric")


def strategies_of(kind: str) -> tuple[type[Any], type[Any]]:
    """The classes of "ring" and "ring_ddp".

    Args:
        kind: "pytorch" or "fabric", of `lightning` if that is installed; or a package's module, such as
            "pytorch_lightning.strategies".

    Raises:
        ImportError: It is not installed.
    """
    names = _MODULES.get(kind, (kind,))
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return _strategies_in(importlib.import_module(name))
    raise ImportError(f"none of {', '.join(names)} is installed. Remedy: pip install 'ringcore-lightning[lightning]'")


def register_in(module: ModuleType) -> None:
    """Add the strategies to the registry of a module that has just been imported."""
    registry = getattr(module, "StrategyRegistry", None) or getattr(module, "STRATEGY_REGISTRY", None)
    if registry is None or "ring" in registry:
        return
    ring, over_ddp = _strategies_in(module)
    registry.register("ring", ring, description="Gradients averaged by ringcore")
    for start_method, name in (("spawn", "ring_spawn"), ("fork", "ring_fork"), ("fork", "ring_notebook")):
        registry.register(name, ring, description=f"As 'ring', with `{start_method}`", start_method=start_method)
    registry.register("ring_ddp", over_ddp, description="DistributedDataParallel over ringcore")


def register() -> None:
    """Add the strategies to the registries of all packages, also of those that are imported later."""
    install()  # type: ignore[no-untyped-call]
    for name in REGISTRIES:
        if name in sys.modules:
            register_in(sys.modules[name])
