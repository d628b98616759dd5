"""What arrays are sent as. See `ringcore.adapter.Compressor`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from ringcore import adapter


class Compressor(adapter.Compressor[Any]):
    """Sends arrays as they are. Subclasses change `wire_dtype` or `quantised`."""

    wide_dtypes = (jnp.float32, jnp.float64)

    @staticmethod
    def dtype_of(tensor: Any) -> Any:
        """The dtype that JAX computes with: a Python number has one as well."""
        return jnp.result_type(tensor)

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """As an array of that dtype."""
        return jnp.asarray(tensor, dtype)


class _Float16(Compressor):
    wire_dtype = jnp.float16


class _BFloat16(Compressor):
    wire_dtype = jnp.bfloat16


class _Int8(Compressor):
    quantised = adapter.QUANTISED["int8"]


class _Int4(Compressor):
    quantised = adapter.QUANTISED["int4"]


class Compression(adapter.Choices, adapter.Exchanges):
    """What `compression=` takes.

    `none`; `fp16`: 11 bits of precision, values up to 65504; `bf16`: 8 bits, and float32's range; `int8`, `int4`:
    between hosts, integers in blocks of 128 with a scale each. Where gradients are averaged, also `powersgd(rank)`,
    `topk(ratio)`, `onebit()`, `blocks(size)` and `error_feedback(kind)`: they have a memory of their own, which is no
    part of an optimizer's state. `state_dict()` gives it, `load_state_dict()` takes it.
    """

    none = Compressor
    fp16 = _Float16
    bf16 = _BFloat16
    int8 = _Int8
    int4 = _Int4
