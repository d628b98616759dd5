"""Gives this distribution the core's version, and pins the core and other distributions of ringcore to it.

The same file in every package: a source distribution must have its own. It does not contain the core; there the backend
takes everything from its PKG-INFO and skips this hook.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class CoreVersionHook(MetadataHookInterface):
    """Reads `packages/core/src/ringcore/_version.py`, the one place where the version stands."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in `version`, `dependencies` and, where the project says so, the extras.

        The project's configuration has `dependencies` besides the core, and may have `adapters`, distributions of
        ringcore that it needs, and `adapter-extras`, those that are extras of the same name.
        """
        source = Path(self.root, "../core/src/ringcore/_version.py").read_text(encoding="utf-8")
        found = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
        if found is None:
            raise ValueError("packages/core/src/ringcore/_version.py has no line '__version__ = \"...\"'")
        version = found[1]
        adapters = [f"ringcore-{name}=={version}" for name in self.config.get("adapters", [])]
        metadata["version"] = version
        metadata["dependencies"] = [f"ringcore=={version}", *adapters, *self.config["dependencies"]]
        if "adapter-extras" in self.config:
            extras = self.config["adapter-extras"]
            metadata["optional-dependencies"] = {name: [f"ringcore-{name}=={version}"] for name in extras}
