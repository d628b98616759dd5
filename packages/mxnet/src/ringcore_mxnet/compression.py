"""What gradients and tensors are sent as. See `ringcore.adapter.Compressor`."""

from __future__ import annotations

from typing import Any

import numpy as np
from ringcore import adapter


class Compressor(adapter.Compressor[Any]):
    """Sends tensors as they are. Subclasses change `wire_dtype` or `quantised`."""

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


class _Int8(Compressor):
    quantised = adapter.QUANTISED["int8"]


class _Int4(Compressor):
    quantised = adapter.QUANTISED["int4"]


class Compression(adapter.Choices, adapter.Exchanges):
    """What `compression=` takes.

    `none`; `fp16`: 11 bits of precision, values up to 65504; `int8`, `int4`: between hosts, integers in blocks of 128
    with a scale each. For `DistributedTrainer` also `powersgd(rank)`, `topk(ratio)`, `onebit()`,
    `blocks(size)`, `error_feedback(kind)`.
    """

    none = Compressor
    fp16 = _Float16
    int8 = _Int8
    int4 = _Int4
