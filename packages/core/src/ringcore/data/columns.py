"""Columns of Arrow as arrays on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

_LISTS = (types.is_list, types.is_large_list, types.is_fixed_size_list)


def leaves_of(schema: pa.Schema) -> dict[str, pa.DataType]:
    """The columns that can be read, by name: those of a struct have its name and a dot before theirs."""

    def walk(name: str, kind: pa.DataType) -> dict[str, pa.DataType]:
        if not types.is_struct(kind):
            return {name: kind}
        inside = (kind.field(index) for index in range(kind.num_fields))
        return {key: leaf for field in inside for key, leaf in walk(f"{name}.{field.name}", field.type).items()}

    return {key: leaf for field in schema for key, leaf in walk(field.name, field.type).items()}


def check_type(name: str, kind: pa.DataType) -> None:
    """Refuse a column that cannot be a tensor.

    Raises:
        ValueError: With its name, its type, and what to do.
    """
    inner = kind
    while any(is_kind(inner) for is_kind in _LISTS):
        inner = inner.value_type
    if not (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)):
        raise ValueError(
            f"column {name!r} has the type {kind}, which is not numeric: tensors are made of integers, floats, "
            "booleans, and lists of them. Cast it to a number, or leave it out (columns=)"
        )


def array_of(name: str, column: pa.ChunkedArray, where: str) -> np.ndarray[Any, Any]:
    """A column as an array; lists make further dimensions. Nothing is copied, but for booleans, which are bits.

    Args:
        name: For errors.
        column: Of a type that `check_type` lets pass.
        where: Says in errors where its rows are.

    Raises:
        ValueError: There are nulls, or lists of different lengths.
    """
    # A window of several row groups has a piece of each.
    chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    shape = [len(chunk)]
    while True:
        if chunk.null_count:
            raise ValueError(
                f"column {name!r} has {chunk.null_count} null(s) in {where}: tensors have none. Fill them "
                f"(fillna) or drop their rows (dropna) before the data is written"
            )
        if not any(is_kind(chunk.type) for is_kind in _LISTS):
            break
        shape.append(_length_of_lists(name, chunk, where))
        chunk = chunk.flatten()
    return _memory_of(chunk).reshape(shape)


def _length_of_lists(name: str, chunk: Any, where: str) -> int:
    if types.is_fixed_size_list(chunk.type):
        return int(chunk.type.list_size)
    lengths = np.diff(chunk.offsets.to_numpy())
    if not len(lengths):
        return 0
    if not (lengths == lengths[0]).all():
        raise ValueError(
            f"column {name!r} has lists of {int(lengths.min())} to {int(lengths.max())} values in {where}: a tensor's "
            "rows have one length. Pad them before the data is written"
        )
    return int(lengths[0])


def _memory_of(chunk: Any) -> np.ndarray[Any, Any]:
    if types.is_boolean(chunk.type):
        found: np.ndarray[Any, Any] = np.array(chunk.to_numpy(zero_copy_only=False))
        return found
    array = chunk.to_numpy(zero_copy_only=True)
    return array if array.flags.writeable else np.asarray(_Ours(array))


class _Ours:
    """Memory that was decoded for one window only: frameworks may write to it, and need not warn that they might."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        told = array.__array_interface__
        self.__array_interface__ = {**told, "data": (told["data"][0], False)}


def reordered(
    arrays: Mapping[str, np.ndarray[Any, Any]], order: np.ndarray[Any, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """Columns with their rows in another order. A gather of each batch would take several times as long.

    Those of a type and shape share a piece of memory: the system gives large ones in large pages.

    Args:
        arrays: By name.
        order: Numbers of rows, each of which is there.
    """
    alike: dict[tuple[Any, tuple[int, ...]], list[str]] = {}
    for name, array in arrays.items():
        alike.setdefault((array.dtype, array.shape[1:]), []).append(name)
    found = {}
    for (kind, shape), names in alike.items():
        block = np.empty((len(names), len(order), *shape), kind)
        for name, target in zip(names, block, strict=True):
            # "wrap" looks at no bounds, and needs no second copy as "raise" would.
            found[name] = np.take(arrays[name], order, axis=0, out=target, mode="wrap")
    return found


def to_torch(array: np.ndarray[Any, Any]) -> Any:
    """The same memory as a tensor of PyTorch."""
    import torch

    return torch.from_numpy(array)


def to_tensorflow(array: np.ndarray[Any, Any]) -> Any:
    """The same memory as a tensor of TensorFlow, if it begins where TensorFlow wants it to."""
    import tensorflow

    if array.dtype == bool:
        return tensorflow.convert_to_tensor(array)
    return tensorflow.experimental.dlpack.from_dlpack(array.__dlpack__())


CONVERSIONS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "numpy": lambda array: array,
    "torch": to_torch,
    "tensorflow": to_tensorflow,
}
