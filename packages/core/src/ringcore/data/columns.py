"""Columns of Arrow as arrays on the same memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

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


class Memory:
    """Where windows are. It is used again when nobody has anything of it any more, as new memory costs page faults."""

    def __init__(self) -> None:
        self._free: dict[tuple[Any, ...], list[np.ndarray[Any, Any]]] = {}

    def take(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An array that holds anything.

        Args:
            shape: Columns, rows, and then that of a row. Windows of other lengths have what is free of the longest.
            kind: Of an element.
        """
        free = self._free.setdefault((shape[0], *shape[2:], kind), [])
        row = free.pop() if free else None
        if row is None or len(row) < math.prod(shape):
            row = np.empty(math.prod(shape), kind)
        return np.asarray(_Lease(row, shape, free))


# One block is used while the next is filled; one more, as batches may live a little longer than their window.
_MOST_FREE = 3


class _Lease:
    """What a block of this shape takes of a row of memory, until the last array or tensor on it is gone."""

    def __init__(
        self, row: np.ndarray[Any, Any], shape: tuple[int, ...], free: list[np.ndarray[Any, Any]]
    ) -> None:  # fmt: skip
        self._row = row
        self._free = free
        self.__array_interface__ = row[: math.prod(shape)].reshape(shape).__array_interface__

    def __del__(self) -> None:
        if len(self._free) < _MOST_FREE:
            self._free.append(self._row)


class Block(NamedTuple):
    """Columns of a type and shape in one piece of memory.

    Attributes:
        names: Theirs.
        array: One behind the other; all with the same number of rows.
    """

    names: list[str]
    array: np.ndarray[Any, Any]


def blocks_of(
    arrays: Mapping[str, np.ndarray[Any, Any]], order: np.ndarray[Any, Any] | None, memory: Memory
) -> list[Block]:
    """Columns that are cut into batches together, and with their rows in another order.

    A gather of each batch would take several times as long, and so would a cut of each column.

    Args:
        arrays: By name.
        order: Numbers of rows, each of which is there; None: as they are.
        memory: For the blocks.
    """
    alike: dict[tuple[Any, tuple[int, ...]], list[str]] = {}
    for name, array in arrays.items():
        alike.setdefault((array.dtype, array.shape), []).append(name)
    blocks = []
    for (kind, shape), names in alike.items():
        if order is None and len(names) == 1:  # Nothing is gained by a copy.
            blocks.append(Block(names, arrays[names[0]][np.newaxis]))
            continue
        block = memory.take((len(names), *shape), kind)
        for name, target in zip(names, block, strict=True):
            if order is None:
                target[:] = arrays[name]
            else:  # "wrap" looks at no bounds, and needs no second copy as "raise" would.
                np.take(arrays[name], order, axis=0, out=target, mode="wrap")
        blocks.append(Block(names, block))
    return blocks


def cut(block: np.ndarray[Any, Any], rows: int) -> Iterator[Iterable[Any]]:
    """Batches of so many rows of each column, on the same memory."""
    return (block[:, start : start + rows] for start in range(0, block.shape[1], rows))


def cut_for_torch(block: np.ndarray[Any, Any], rows: int) -> Iterator[Iterable[Any]]:
    """The same memory as tensors of PyTorch."""
    import torch

    tensor = torch.from_numpy(block)
    return (tensor[:, start : start + rows].unbind() for start in range(0, block.shape[1], rows))


def cut_for_tensorflow(block: np.ndarray[Any, Any], rows: int) -> Iterator[Iterable[Any]]:
    """The same memory as tensors of TensorFlow, where it begins as TensorFlow wants it to."""
    import tensorflow

    def convert(array: np.ndarray[Any, Any]) -> Any:
        if array.dtype == bool:
            return tensorflow.convert_to_tensor(array)
        return tensorflow.experimental.dlpack.from_dlpack(array.__dlpack__())

    return (map(convert, batch) for batch in cut(block, rows))


CUTS: dict[str, Callable[[np.ndarray[Any, Any], int], Iterator[Iterable[Any]]]] = {
    "numpy": cut,
    "torch": cut_for_torch,
    "tensorflow": cut_for_tensorflow,
}
