"""Columns of Arrow as arrays on the same memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


def pieces_of(name: str, column: pa.ChunkedArray, where: str) -> list[np.ndarray[Any, Any]]:
    """A column as arrays; lists make further dimensions. Nothing is copied, but for booleans, which are bits.

    Args:
        name: For errors.
        column: Of a type that `check_type` lets pass.
        where: Says in errors where its rows are.

    Returns:
        Of a window of several row groups one for each; what is in the first row group stands first.

    Raises:
        ValueError: There are nulls, or lists of different lengths.
    """
    chunks = [chunk for chunk in column.chunks if len(chunk)] or [column.combine_chunks()]
    rows = [len(chunk) for chunk in chunks]
    shape: list[int] = []
    while True:
        nulls = sum(chunk.null_count for chunk in chunks)
        if nulls:
            raise ValueError(
                f"column {name!r} has {nulls} null(s) in {where}: tensors have none. Fill them (fillna) or drop their "
                "rows (dropna) before the data is written"
            )
        if not any(is_kind(chunks[0].type) for is_kind in _LISTS):
            return [_memory_of(chunk).reshape(count, *shape) for chunk, count in zip(chunks, rows, strict=True)]
        shape.append(_length_of_lists(name, chunks, where))
        chunks = [chunk.flatten() for chunk in chunks]


def _length_of_lists(name: str, chunks: Sequence[Any], where: str) -> int:
    if types.is_fixed_size_list(chunks[0].type):
        return int(chunks[0].type.list_size)
    lengths = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in chunks])
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
    columns: Mapping[str, Sequence[np.ndarray[Any, Any]]], order: np.ndarray[Any, Any] | None, memory: Memory
) -> list[Block]:
    """Columns that are cut into batches together, and with their rows in another order.

    A gather of each batch would take several times as long, and so would a cut of each column.

    Args:
        columns: The pieces of each, by name.
        order: Numbers of rows, each of which is there; None: as they are.
        memory: For the blocks.
    """
    alike: dict[tuple[Any, tuple[int, ...]], list[str]] = {}
    for name, pieces in columns.items():
        shape = (sum(map(len, pieces)), *pieces[0].shape[1:])
        alike.setdefault((pieces[0].dtype, shape), []).append(name)
    blocks = []
    for (kind, shape), names in alike.items():
        if order is None and len(names) == len(columns[names[0]]) == 1:  # Nothing is gained by a copy.
            blocks.append(Block(names, columns[names[0]][0][np.newaxis]))
            continue
        block = memory.take((len(names), *shape), kind)
        # Pieces are put together where the caches of the processor have them when they are gathered.
        whole = np.empty(shape, kind) if order is not None and len(columns[names[0]]) > 1 else None
        for name, target in zip(names, block, strict=True):
            pieces = columns[name]
            if order is None:
                np.concatenate(pieces, out=target)
                continue
            source = pieces[0] if whole is None else np.concatenate(pieces, out=whole)
            # "wrap" looks at no bounds, and needs no second copy as "raise" would.
            np.take(source, order, axis=0, out=target, mode="wrap")
        blocks.append(Block(names, block))
    return blocks


def cut(block: np.ndarray[Any, Any], rows: int) -> Iterator[Iterable[Any]]:
    """Batches of so many rows of each column, on the same memory."""
    return (block[:, start : start + rows] for start in range(0, block.shape[1], rows))


def cut_for_torch(block: np.ndarray[Any, Any], rows: int) -> Iterator[Iterable[Any]]:
    """The same memory as tensors of PyTorch."""
    import torch

    tensor = torch.from_numpy(block)
    return (batch.unbind() for batch in torch.split(tensor, rows, 1))


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
