"""ringcore on Ray: actors as ranks, a backend for Ray Train, and groups for `ray.util.collective`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringcore.launcher.external import RankError

    from ringcore_ray.collective import RingGroup, register_ring
    from ringcore_ray.executor import RingExecutor
    from ringcore_ray.train import RingConfig, RingTrainer

# Loaded at first use: Ray Train takes seconds to import, and needs packages that Ray alone does not.
_HOMES = {
    "RankError": "ringcore.launcher.external",
    "RingConfig": "ringcore_ray.train",
    "RingExecutor": "ringcore_ray.executor",
    "RingGroup": "ringcore_ray.collective",
    "RingTrainer": "ringcore_ray.train",
    "register_ring": "ringcore_ray.collective",
}

__all__ = ["RankError", "RingConfig", "RingExecutor", "RingGroup", "RingTrainer", "register_ring"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ringcore_ray' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
