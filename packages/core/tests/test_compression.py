"""Compression, for every adapter: here with arrays of numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from ringcore import adapter


class Compressor(adapter.Compressor[Any]):
    wide_dtypes = (np.dtype("float32"), np.dtype("float64"))
    cast = staticmethod(np.ndarray.astype)


class Float16(Compressor):
    wire_dtype = np.float16


def test_wide_floats_are_sent_in_16_bits_and_come_back_as_they_were() -> None:
    sent: list[Any] = []

    def double(tensors: list[Any]) -> list[Any]:
        sent.extend(tensors)
        return [tensor * 2 for tensor in tensors]

    own = [np.float32([1.0, 1 + 2**-12]), np.float64([3.0]), np.float16([4.0]), np.int64([2**40])]
    results = adapter.reduce_compressed(Float16, own, double)
    assert [str(tensor.dtype) for tensor in sent] == ["float16", "float16", "float16", "int64"]
    assert [str(tensor.dtype) for tensor in results] == ["float32", "float64", "float16", "int64"]
    assert [tensor.tolist() for tensor in results] == [[2.0, 2.0], [6.0], [8.0], [2**41]]


def test_without_compression_nothing_is_looked_at() -> None:
    tensors = [object()]
    assert adapter.reduce_compressed(Compressor, tensors, list)[0] is tensors[0]
