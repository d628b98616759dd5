"""ringcore for Lightning: `Trainer(strategy="ring")`, `Fabric(strategy="ring")`.

`RingStrategy` is for the Trainer of `lightning.pytorch`, or of `pytorch_lightning` where only that is installed;
`FabricRingStrategy` is for Fabric. `strategies_of` has those of a package that is named.
"""

from __future__ import annotations

from typing import Any

from ringcore import __version__
from ringcore import adapter as _adapter

from ringcore_lightning.environment import RingEnvironment
from ringcore_lightning.registration import register, strategies_of

_adapter.require_same_version("ringcore-lightning")
register()

__all__ = ["FabricRingStrategy", "RingEnvironment", "RingStrategy", "__version__", "register", "strategies_of"]


def __getattr__(name: str) -> Any:
    if name == "RingStrategy":
        return strategies_of("pytorch")[0]
    if name == "FabricRingStrategy":
        return strategies_of("fabric")[0]
    raise AttributeError(f"module 'ringcore_lightning' has no attribute {name!r}")
