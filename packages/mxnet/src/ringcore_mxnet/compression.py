"""Fewer bytes on the wire: gradients are sent as 16-bit floats. Sums are made in float32 and rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np


class Compressor:
    """Sends tensors as they are. Subclasses change `wire_dtype`."""

    wire_dtype: str | None = None

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The tensor as it is sent, and what `decompress` needs to know."""
        if cls.wire_dtype is None or tensor.stype != "default" or tensor.dtype not in (np.float32, np.float64):
            return tensor, None
        return tensor.astype(cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, dtype: Any) -> Any:
        """The received tensor in its own dtype again."""
        return tensor if dtype is None else tensor.astype(dtype)


class _Float16(Compressor):
    wire_dtype = "float16"


class Compression:
    """What `compression=` takes: `none`; `fp16`: 11 bits of precision, values up to 65504."""

    none = Compressor
    fp16 = _Float16
