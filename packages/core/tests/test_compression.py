"""Compression, for every adapter: here with arrays of numpy."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import ringcore
from ringcore import InvalidArgument, adapter
from ringcore.adapter import sparsified


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
        (Compression.topk(0.1), "somebody does not take TopK, which averages all .* one of none, fp16 here"),
    ],
)
def test_anything_else_is_refused_with_what_is_taken(given: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        Compression.chosen(given, who="somebody")


def test_an_exchange_is_made_by_its_name_where_it_lasts() -> None:
    made = Compression.chosen("powersgd", exchanges=True)
    assert repr(made) == "PowerSGD(rank=4, warmup_steps=0)"
    assert Compression.chosen("powersgd", exchanges=True) is not made
    with pytest.raises(InvalidArgument, match=r"a tape is called anew in each step.*exchange = Compression\.topk\(\)"):
        Compression.chosen("topk", exchanges=True, lasts=False, who="a tape")
    with pytest.raises(InvalidArgument, match="not '__module__'"):
        Compression.chosen("__module__", exchanges=True)


def test_errors_are_fed_back_of_what_loses_some() -> None:
    fed = Compression.with_errors(Smaller, error_feedback=True)
    assert repr(fed) == "ErrorFeedback(kind='fp16', warmup_steps=0)"
    assert Compression.with_errors(Smaller, error_feedback=False) is Smaller
    assert Compression.with_errors(fed, error_feedback=True) is fed  # which does so anyway
    with pytest.raises(InvalidArgument, match="pass a compression, or leave it out"):
        Compression.with_errors(Compressor, error_feedback=True)
    with pytest.raises(InvalidArgument, match="one of fp16, bf16, int8, int4, not 'int2'"):
        Compression.error_feedback("int2")


def test_a_copy_of_an_exchange_has_its_memory_and_compares_for_itself() -> None:
    exchange = Compression.powersgd(2)
    exchange.errors["weight"] = np.ones(3, np.float32)
    exchange._compared.add("gradients")
    copied = pickle.loads(pickle.dumps(exchange))
    assert copied.errors["weight"].tolist() == [1, 1, 1]
    assert copied.rank == 2
    assert not copied._compared


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpys_bfloat16_is_that_of_ml_dtypes(dtype: str) -> None:
    generator = np.random.default_rng(1)
    bits = generator.integers(0, 2**32, 100_000, np.uint32)  # of all kinds, also infinities and what is no number
    halfway = (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000
    values = np.concatenate([bits, halfway, halfway - 1, halfway + 1, halfway & 0xFFFF0000]).view(np.float32)
    with np.errstate(invalid="ignore"):
        values = values.astype(dtype)
        expected = values.astype(ml_dtypes.bfloat16).astype(dtype)
    sent, kept = ringcore.Compression.bf16.compress(values)
    assert sent.dtype == np.uint16
    got = ringcore.Compression.bf16.decompress(sent, kept)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, expected)  # not a number is equal to not a number
    assert np.array_equal(np.signbit(got), np.signbit(expected))


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of one rank."""
    ringcore.init()
    yield
    ringcore.shutdown()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_what_was_cast_goes_where_the_caller_says(kind: str) -> None:
    wide, ints = np.float32([[1.0, 2.0 + 2**-20, np.nan]]), np.arange(3, dtype=np.int32)
    places = [np.zeros_like(wide), np.zeros_like(ints)]
    results = ringcore.grouped_allreduce([wide, ints], op=ringcore.Sum, out=places, compression=kind)
    assert results[0] is places[0]
    assert results[1] is places[1]
    np.testing.assert_array_equal(places[0], [[1.0, 2.0, np.nan]])
    assert places[1].tolist() == [0, 1, 2]
    shown = memoryview(bytearray(12)).cast("f")
    assert ringcore.allreduce(wide[0], out=shown, compression=kind) is shown
    assert shown[1] == 2.0
    assert ringcore.allreduce(wide[:, ::2], compression=kind, op=ringcore.Adasum).tolist()[0][0] == 1.0
    assert ringcore.allreduce(np.float64(2.0 + 2**-20), compression=kind).tolist() == 2.0
    assert ringcore.allreduce(np.array(2.0 + 2**-20), compression=kind).shape == ()
    seen = ringcore.allreduce(memoryview(wide[0].tobytes()).cast("f"), compression=kind)
    assert seen.tolist()[:2] == [1.0, 2.0], "what numpy did not make is cast as well"


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("place", "words"),
    [
        (np.zeros(3, np.float32), r"'x': the output is float32 \[3\], the input float32 \[4\]. Remedy"),
        (np.zeros(4, np.float16), r"'x': the output is float16 \[4\], the input float32 \[4\]. Remedy"),
        (b"0123456789abcdef", "'x': out: builtins.bytes is read-only"),
    ],
)
def test_a_place_that_what_was_cast_does_not_fit_is_refused(kind: str, place: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        ringcore.allreduce(np.ones(4, np.float32), out=place, name="x", compression=kind)
    with pytest.raises(InvalidArgument, match="there are 2 arrays for 1 tensors"):
        ringcore.grouped_allreduce([np.ones(4, np.float32)], out=[place] * 2, compression=kind)


@pytest.mark.parametrize("size", [1024, 1025, 65_536, 200_001])
@pytest.mark.parametrize("ratio", [0.001, 0.02, 0.5])
def test_the_largest_values_are_written_in_few_bytes_and_read_again(size: int, ratio: float) -> None:
    count = max(1, int(size * ratio))
    generator = np.random.default_rng(size)
    places = np.sort(generator.permutation(size)[:count])
    values = generator.standard_normal(count).astype(np.float32) * np.float32(1e-20)
    form = sparsified._Form(size, count)
    written = form.write(places, values)
    assert written.size == form.nbytes
    # 16 bits of a value, and of its place 8 with 16 for each block of 256, or 16 with 32 for each of 65536.
    assert form.nbytes <= 8 + min(3 * count + 2 * (size / 256 + 1), 4 * count + 4 * (size / 65_536 + 1))
    at, found = form.read(written, values.dtype)
    np.testing.assert_array_equal(at, places)
    assert found.dtype == values.dtype
    # Half of the last of 11 bits, or of the smallest part of the largest.
    off = np.abs(found - values)
    assert (off <= np.maximum(np.abs(values) * 2.0**-11, np.abs(values).max() * 2.0**-25)).all()


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_what_is_no_number_is_seen_by_whoever_reads(odd: float) -> None:
    form = sparsified._Form(1024, 3)
    _, found = form.read(form.write(np.array([1, 5, 1023]), np.float32([1.0, odd, 2.0])), np.dtype("float32"))
    assert np.isnan(found).any()


def test_a_block_may_be_full() -> None:
    form = sparsified._Form(512, 256)
    places, found = form.read(form.write(np.arange(256, 512), np.zeros(256)), np.dtype("float64"))
    np.testing.assert_array_equal(places, np.arange(256, 512))
    assert not found.any()
