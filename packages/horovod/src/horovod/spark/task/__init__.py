"""What a rank can ask about its task of Spark."""

from __future__ import annotations

import os

__all__ = ["get_available_devices"]


def get_available_devices() -> list[str]:
    """The GPUs that Spark has given to this rank's task."""
    return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
