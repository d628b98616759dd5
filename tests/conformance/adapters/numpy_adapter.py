"""numpy: the core itself."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import ringcore as collectives

dtypes = (
    "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool",
)  # fmt: skip


def tensor(array: np.ndarray) -> np.ndarray:
    return array.copy()


def array(tensor: np.ndarray) -> np.ndarray:
    return tensor
