"""Python objects as bytes: pickled, which runs code where they are read, or plain, which does not.

Plain are None, numbers, text, bytes, lists, tuples, dictionaries, and arrays of numpy. They go as a length, JSON, and
the bytes of all arrays behind each other; what JSON does not have is an object of one entry there.
"""

from __future__ import annotations

import json
import math
import pickle
import struct
from typing import Any

from ringcore._errors import InvalidArgument

_PLAIN = b"plain"
_LENGTH = struct.Struct("<Q")
_SCALARS = (type(None), bool, int, float, str)


def pickled(value: object) -> bytes:
    """By cloudpickle where it is installed: it takes functions and classes of a notebook by value."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(value)
    data: bytes = cloudpickle.dumps(value)
    return data


def unpickle(data: bytes) -> Any:
    """The one place where ringcore unpickles anything. It may run any code: the data must be of who may run it."""
    return pickle.loads(data)


def is_plain(data: bytes) -> bool:
    """Whether bytes are of `plain`; no pickle begins as they do."""
    return data.startswith(_PLAIN)


def plain(value: object) -> bytes:
    """An object as bytes that run nothing where they are read.

    Raises:
        InvalidArgument: Something in it is none of what the module names.
    """
    pieces: list[bytes] = []
    text = json.dumps(_encoded(value, pieces)).encode()
    return b"".join([_PLAIN, _LENGTH.pack(len(text)), text, *pieces])


def _encoded(value: Any, pieces: list[bytes]) -> Any:
    kind = type(value)  # not what is derived from it: it would come as something else
    if kind in _SCALARS:
        return value
    if kind is list:
        return [_encoded(item, pieces) for item in value]
    if kind is tuple:
        return {"tuple": [_encoded(item, pieces) for item in value]}
    if kind is dict:
        return {"dict": [[_encoded(key, pieces), _encoded(item, pieces)] for key, item in value.items()]}
    if kind is bytes:
        pieces.append(value)
        return {"bytes": len(value)}
    is_number = kind.__module__ == "numpy" and hasattr(value, "dtype") and kind.__name__ != "ndarray"
    if (kind.__module__, kind.__name__) == ("numpy", "ndarray") or is_number:
        if value.dtype.kind not in "biufc":
            raise InvalidArgument(f"arrays of {value.dtype} are not sent as plain values: only those of numbers are")
        pieces.append(value.tobytes())
        return {"number" if is_number else "array": [value.dtype.str, list(value.shape)]}
    raise InvalidArgument(
        f"a {kind.__module__}.{kind.__qualname__} is not sent without pickle: only None, numbers, text, bytes, lists, "
        "tuples, dictionaries and arrays of numpy are"
    )


def parse_plain(data: bytes) -> Any:
    """Read what `plain` made.

    Raises:
        InvalidArgument: It did not.
    """
    try:
        begin = len(_PLAIN) + _LENGTH.size
        (length,) = _LENGTH.unpack_from(data, len(_PLAIN))
        reader = _Reader(memoryview(data)[begin + length :])
        value = reader.decoded(json.loads(data[begin : begin + length]))
        if reader.rest:
            raise ValueError(f"{len(reader.rest)} bytes are left over")
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, SyntaxError, struct.error) as error:
        raise InvalidArgument(f"these are not the bytes of a plain object: {error}") from None
    return value


class _Reader:
    def __init__(self, rest: memoryview) -> None:
        self.rest = rest

    def decoded(self, said: Any) -> Any:
        if isinstance(said, list):
            return [self.decoded(item) for item in said]
        if not isinstance(said, dict):
            return said
        ((kind, what),) = said.items()
        if kind == "tuple":
            return tuple(self.decoded(item) for item in what)
        if kind == "dict":
            return {self.decoded(key): self.decoded(item) for key, item in what}
        if kind == "bytes":
            return bytes(self._take(what))
        import numpy as np  # who sends arrays has it

        dtype, shape = np.dtype(what[0]), [int(extent) for extent in what[1]]
        if kind not in ("array", "number") or dtype.kind not in "biufc" or min(shape, default=0) < 0:
            raise ValueError(f"{kind} of {what}")
        array = np.frombuffer(self._take(math.prod(shape) * dtype.itemsize), dtype).reshape(shape).copy()
        return array[()] if kind == "number" else array

    def _take(self, count: int) -> memoryview:
        if not 0 <= count <= len(self.rest):
            raise ValueError(f"{count} bytes are said to follow, and {len(self.rest)} do")
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken
