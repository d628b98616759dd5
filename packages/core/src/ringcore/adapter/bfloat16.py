"""bfloat16, with numpy alone: the upper halves of float32, as integers of as many bits."""

from __future__ import annotations

from typing import Any

from ringcore import _native
from ringcore._native import Buffer


def bits_of(values: Any) -> Any:
    """The bits of the nearest values, of two the even one. Shape: that of `values`, which are floats; dtype: uint16."""
    import numpy as np

    shape = np.shape(values)
    with np.errstate(over="ignore"):  # what is too large is infinite
        narrow = np.atleast_1d(np.asarray(values)).astype(np.float32, order="C", copy=False)
    bits = narrow.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    # Rounding would make an infinity or a zero of some that are no numbers.
    return np.where(np.isnan(narrow), (bits >> 16) | 0x40, rounded).astype(np.uint16).reshape(shape)


def values_of(bits: Any, dtype: Any = "float32") -> Any:
    """The values of such bits, which float32 and float64 hold exactly."""
    import numpy as np

    wide = np.atleast_1d(bits).astype(np.uint32) << 16
    return wide.view(np.float32).astype(dtype, copy=False).reshape(np.shape(bits))


def buffer_of(bits: Any) -> Buffer:
    """What the engine is to see of such bits: numbers that it can sum up."""
    return Buffer(bits.ctypes.data, bits.shape, _native.DTYPES["bfloat16"], bits)
