"""Gives this distribution the core's version and pins the core to it.

A source distribution does not contain the core; there the backend takes both from its PKG-INFO and skips this hook.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class CoreVersionHook(MetadataHookInterface):
    """Reads `packages/core/src/ringcore/_version.py`, the one place where the version stands."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in `version` and `dependencies`."""
        source = Path(self.root, "../core/src/ringcore/_version.py").read_text(encoding="utf-8")
        found = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
        if found is None:
            raise ValueError("packages/core/src/ringcore/_version.py has no line '__version__ = \"...\"'")
        metadata["version"] = found[1]
        metadata["dependencies"] = [f"ringcore=={found[1]}", *self.config["dependencies"]]
