"""Fewer bytes on the wire: tensors are sent as 16-bit floats. Sums are made in float32 and rounded once."""

from __future__ import annotations

import tensorflow as tf


class Compressor:
    """Sends tensors as they are. Subclasses change `wire_dtype`."""

    wire_dtype: tf.DType | None = None

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType | None]:
        """The tensor as it is sent, and what `decompress` needs to know."""
        if cls.wire_dtype is None or tensor.dtype not in (tf.float32, tf.float64):
            return tensor, None
        return tf.cast(tensor, cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: tf.Tensor, dtype: tf.DType | None) -> tf.Tensor:
        """The received tensor in its own dtype again."""
        return tensor if dtype is None else tf.cast(tensor, dtype)


class _Float16(Compressor):
    wire_dtype = tf.float16


class _BFloat16(Compressor):
    wire_dtype = tf.bfloat16


class Compression:
    """What `compression=` takes.

    `none`; `fp16`: 11 bits of precision, values up to 65504; `bf16`: 8 bits, and float32's range.
    """

    none = Compressor
    fp16 = _Float16
    bf16 = _BFloat16
