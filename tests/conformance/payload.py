"""What ranks put in, and what must come out, in numpy alone.

Every rank's values carry another power of two, so that a wrong sum shows whose contribution was lost or doubled.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (3,), (1000,), (100003,), (17, 5), (0, 4))
FLOATS = ("float16", "bfloat16", "float32", "float64")
HALVES = ("float16", "bfloat16")


def dtype_of(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def payload(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """A rank's contribution: small enough for sums, products and averages of three ranks to be exact in 8 bits."""
    index = np.arange(int(np.prod(shape))).reshape(shape)
    if dtype == "bool":
        return np.asarray((index >> rank) % 2 == 0)
    return np.asarray((index % 2 + 1) * 2**rank).astype(dtype_of(dtype))


def fractions(rank: int, count: int, dtype: str) -> np.ndarray:
    """16-bit floats of all bits: their sums are exact in float32, and not in 16 bits."""
    generator = np.random.default_rng(rank)
    signs = generator.choice([-1.0, 1.0], count)
    return np.asarray(signs * generator.uniform(0.25, 1.0, count)).astype(dtype_of(dtype))


def reduced(parts: list[np.ndarray], op: str) -> np.ndarray:
    """What a reduction of all ranks' contributions gives, rounded once."""
    dtype = parts[0].dtype
    wide = np.stack([part.astype(np.float64) for part in parts])
    if op == "average":
        return np.asarray(wide.sum(0) / len(parts)).astype(dtype)
    function = {"sum": np.sum, "min": np.min, "max": np.max, "product": np.prod}[op]
    return np.asarray(function(wide, axis=0)).astype(dtype)


def ulps_apart(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, in units of the expected value's last place."""
    if got.size == 0:
        return 0.0
    wide = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    spacing = np.abs(np.spacing(np.abs(expected))).astype(np.float64)
    return float((wide / spacing).max())
