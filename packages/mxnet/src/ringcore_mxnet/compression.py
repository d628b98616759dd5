"""What gradients and tensors are sent as. See `ringcore.adapter.Compressor`."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from ringcore import adapter

from ringcore_mxnet._shim import round_to_bfloat16

# What MXNet calls bfloat16.
_BFLOAT16 = np.dtype([("bfloat16", np.uint16)])


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


class _BFloat16(Compressor):
    wire_dtype = _BFLOAT16

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """The tensor in another dtype: to bfloat16 the nearest values, an array of `mx.nd`, as `mx.np` has no such."""
        if np.dtype(dtype) != _BFLOAT16:
            return tensor.astype(dtype)
        with mx.util.np_shape(True):  # else arrays without elements or dimensions are ones of unknown shape
            values = tensor.as_nd_ndarray() if isinstance(tensor, mx.np.ndarray) else tensor
            rounded = mx.nd.empty(values.shape, values.context, _BFLOAT16)
            round_to_bfloat16(values.astype(np.float32, copy=False), rounded)
        return rounded


class _Int8(Compressor):
    quantised = adapter.QUANTISED["int8"]


class _Int4(Compressor):
    quantised = adapter.QUANTISED["int4"]


class Compression(adapter.Choices, adapter.Exchanges):
    """What `compression=` takes.

    `none`; `fp16`: 11 bits of precision, values up to 65504; `bf16`: 8 bits, and float32's range; `int8`, `int4`:
    between hosts, integers in blocks of 128 with a scale each. For `DistributedTrainer` also `powersgd(rank)`,
    `topk(ratio)`, `onebit()`, `blocks(size)`, `error_feedback(kind)`.
    """

    none = Compressor
    fp16 = _Float16
    bf16 = _BFloat16
    int8 = _Int8
    int4 = _Int4
