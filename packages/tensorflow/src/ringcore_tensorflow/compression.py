"""What gradients and tensors are sent as. See `ringcore.adapter.Compressor`."""

from __future__ import annotations

import tensorflow as tf
from ringcore import adapter


class Compressor(adapter.Compressor[tf.Tensor]):
    """Sends tensors as they are. Subclasses change `wire_dtype` or `quantised`."""

    wide_dtypes = (tf.float32, tf.float64)
    cast = staticmethod(tf.cast)


class _Float16(Compressor):
    wire_dtype = tf.float16


class _BFloat16(Compressor):
    wire_dtype = tf.bfloat16


class _Int8(Compressor):
    quantised = adapter.QUANTISED["int8"]


class _Int4(Compressor):
    quantised = adapter.QUANTISED["int4"]


class Compression(adapter.Choices, adapter.Exchanges):
    """What `compression=` takes.

    `none`; `fp16`: 11 bits of precision, values up to 65504; `bf16`: 8 bits, and float32's range; `int8`, `int4`:
    between hosts, integers in blocks of 128 with a scale each. Where gradients are averaged, also `powersgd(rank)`,
    `topk(ratio)`, `onebit()`, `blocks(size)` and `error_feedback(kind)`, made once, before the first step.
    """

    none = Compressor
    fp16 = _Float16
    bf16 = _BFloat16
    int8 = _Int8
    int4 = _Int4
