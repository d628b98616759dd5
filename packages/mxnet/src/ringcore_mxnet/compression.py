"""What gradients and tensors are sent as. See `ringcore.adapter.Compressor`."""

from __future__ import annotations

from typing import Any

import numpy as np
from ringcore import adapter


class Compressor(adapter.Compressor[Any]):
    """Sends tensors as they are. Subclasses change `wire_dtype`."""

    wide_dtypes = (np.float32, np.float64)

    @staticmethod
    def dtype_of(tensor: Any) -> Any:
        """A tensor's dtype; of row-sparse ones None, as they are sent as they are."""
        return tensor.dtype if tensor.stype == "default" else None

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """The tensor in another dtype."""
        return tensor.astype(dtype)


class _Float16(Compressor):
    wire_dtype = "float16"


class Compression:
    """What `compression=` takes: `none`; `fp16`: 11 bits of precision, values up to 65504."""

    none = Compressor
    fp16 = _Float16
