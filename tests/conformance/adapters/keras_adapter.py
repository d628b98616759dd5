"""Keras: ringcore_keras, whose collectives outside of what a backend compiles are those of the core, on arrays."""

from __future__ import annotations

import ringcore_keras as collectives

from conformance.adapters.numpy_adapter import array, dtypes, tensor

__all__ = ["array", "collectives", "dtypes", "tensor"]
