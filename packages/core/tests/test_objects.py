"""Objects as bytes that run nothing where they are read."""

from __future__ import annotations

import collections
import enum
import math
from typing import Any

import numpy as np
import pytest
from ringcore import InvalidArgument
from ringcore._objects import is_plain, parse_plain, pickled, plain

PLAIN = [
    None, True, 0, -(10**30), 1.5, "", "é\ud7ff\0", b"", b"\x80\x04", [], [1, [2, "three"]], (), ((1,), [2]), {},
    {"a": 1, 2: b"x", (3, "b"): None}, {"dict": [1], "array": (2,)}, {"lists": [[{"deep": ({},)}]]},
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_what_is_plain_comes_as_it_was(value: Any) -> None:
    data = plain(value)
    assert is_plain(data) and not is_plain(pickled(value))
    back = parse_plain(data)
    assert back == value and repr(back) == repr(value)


def test_numbers_that_json_does_not_have() -> None:
    back = parse_plain(plain([math.inf, -math.inf, math.nan]))
    assert back[:2] == [math.inf, -math.inf] and math.isnan(back[2])


@pytest.mark.parametrize("dtype", ["bool", "int8", ">i4", "uint64", "float16", "float64", "complex128"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_arrays_come_with_their_dtype_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    first, second = parse_plain(plain([array, {"again": array.T}]))
    for got, sent in ((first, array), (second["again"], array.T)):
        assert type(got) is np.ndarray and got.dtype == sent.dtype and got.shape == sent.shape
        assert got.tobytes() == sent.tobytes() and got.flags.writeable


def test_a_number_of_numpy_is_one_again() -> None:
    back = parse_plain(plain(np.float32(1.5)))
    assert type(back) is np.float32 and back == 1.5


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        object(),
        len,
        Colour.RED,
        collections.OrderedDict(a=1),
        np.array([None]),
        np.array(["a"]),
        [1, {"x": 1j}],
    ],
    ids=repr,
)
def test_what_is_not_plain_is_refused_and_named(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"plain|without pickle"):
        plain(value)


@pytest.mark.parametrize(
    "data",
    [
        b"plain", b"plain" + bytes(8), plain([1])[:-1], plain(b"abc")[:-1], plain(b"abc") + b"d",
        plain([1]).replace(b"[1]", b"{}\n"), plain(np.zeros(2)).replace(b"<f8", b"|O8"),
        plain(np.zeros(2)).replace(b"[2]", b"[9]"), plain(b"abc").replace(b"3}", b'""'),
        plain(np.zeros(2)).replace(b'["<f8", [2]]', b'[]          '), plain(np.zeros(2)).replace(b"<f8", b",,,"),
        plain(np.zeros(100_000)).replace(b"[100000]", b"[1e9999]"),
        b"plain" + (200_000).to_bytes(8, "little") + b"[" * 200_000,
    ],
)  # fmt: skip
def test_what_is_cut_or_changed_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="not the bytes of a plain object"):
        parse_plain(data)
