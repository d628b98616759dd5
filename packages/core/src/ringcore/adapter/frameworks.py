"""What an adapter needs beside the core: told to whoever has not installed it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping


def import_framework(module: str, distribution: str, remedies: Mapping[str, str]) -> None:
    """Import a framework, or tell what to install; for an adapter, before it imports what needs the framework.

    Args:
        module: The framework's.
        distribution: The adapter's, such as "ringcore-torch".
        remedies: Module that may be missing -> what to give to `pip install`.

    Raises:
        ImportError: One of them is not installed; the message tells what to install.
    """
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name not in remedies:
            raise
        remedy = f"Remedy: pip install {remedies[error.name]}"
        raise ImportError(
            f"{distribution} needs {error.name}, which is not installed. {remedy}", name=error.name
        ) from None
