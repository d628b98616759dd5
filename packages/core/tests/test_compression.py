"""Compression, for every adapter: here with arrays of numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ringcore import InvalidArgument, adapter


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


class Compression(adapter.Choices, adapter.Exchanges):
    none = Compressor
    fp16 = Float16


class Smaller(Float16):
    """Somebody's own."""


def test_a_member_its_name_and_what_is_derived_from_one_are_taken() -> None:
    assert Compression.chosen(Compression.fp16) is Float16
    assert Compression.chosen("fp16") is Float16
    assert Compression.chosen(Smaller) is Smaller
    exchange = Compression.topk(0.1)
    assert Compression.chosen(exchange, exchanges=True) is exchange


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("int7", "one of none, fp16, or its name, not 'int7'"),
        (None, "not None"),
        (adapter.Exchange, "one of none, fp16"),
        (Compression.topk, "call it: Compression.topk\\(\\)"),
        (Compression.topk(0.1), "TopK averages all gradients of a step by itself"),
    ],
)
def test_anything_else_is_refused_with_what_is_taken(given: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        Compression.chosen(given)
