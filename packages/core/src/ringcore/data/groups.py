"""Where rows are: the row groups of a Parquet data set, or the batches of a file of Arrow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ringcore.data.columns import leaves_of
from ringcore.data.line import Line, Segment
from ringcore.data.tables import dataset_of


class Groups:
    """Rows in groups, each of which is read in one piece.

    Attributes:
        counts: Rows of each group.
        schema: Of all of them.
        writable: Whether what `load` returns is in memory of our own, and not that of a file.
    """

    writable = True
    counts: list[int]
    schema: pa.Schema

    def load(self, number: int, columns: Sequence[str]) -> pa.Table:
        """A group."""
        raise NotImplementedError

    def file_of(self, number: int) -> str:
        """Where it is, for errors."""
        raise NotImplementedError

    def leaves(self, wanted: Sequence[str] | None) -> dict[str, pa.DataType]:
        """Columns and their types.

        Raises:
            ValueError: One is not there, or there are none.
        """
        there = leaves_of(self.schema)
        for name in wanted or ():
            if name not in there:
                raise ValueError(f"there is no column {name!r} in the data: it has {', '.join(there) or 'none'}")
        if not (there if wanted is None else wanted):
            raise ValueError("no columns are asked for, or there are none: name at least one (columns=)")
        return {name: there[name] for name in (there if wanted is None else wanted)}

    def line(self, random: np.random.Generator | None) -> Line:
        """All rows: row groups in a random order, or as they are in the files."""
        numbers = range(len(self.counts)) if random is None else random.permutation(len(self.counts))
        return Line([Segment(int(group), range(self.counts[group])) for group in numbers])

    def read(self, rows: Line, columns: Sequence[str]) -> tuple[pa.Table, str]:
        """Rows as a table.

        Returns:
            The table, and for errors the files that it is from.
        """
        tables: list[pa.Table] = []
        files: dict[str, None] = {}
        for group, numbers in rows.segments:
            table = self.load(group, columns)
            files[self.file_of(group)] = None
            if isinstance(numbers, range):
                tables.append(table.slice(numbers.start, len(numbers)))
            else:
                tables.append(table.take(pa.array(numbers)))
        first, *more = files
        return pa.concat_tables(tables), f"{first}{f' and {len(more)} more file(s)' if more else ''}"


class RowGroups(Groups):
    """Every row group of a data set, by number.

    Args:
        source: Path, paths, or dataset.
        filesystem: Of pyarrow or fsspec.

    Attributes:
        name: What the source is called in errors.

    Raises:
        ValueError: It is not Parquet, or a table that cannot be read as it is.
    """

    def __init__(self, source: Any, filesystem: Any) -> None:
        self.name = "a dataset" if isinstance(source, ds.Dataset) else str(source)
        self._dataset = dataset_of(source, filesystem)
        self.schema = self._dataset.schema
        self.counts = []
        self._parts: list[tuple[Any, int]] = []
        for fragment in self._dataset.get_fragments():
            if not isinstance(fragment, ds.ParquetFileFragment):
                raise ValueError(f"{source} is not Parquet: {type(fragment).__name__}")
            for group in fragment.row_groups:
                self._parts.append((fragment, group.id))
                self.counts.append(group.num_rows)
        self._last: tuple[int, pa.Table] | None = None

    def identity(self) -> str:
        """Equal where the same files are read, wherever a host has them: of their names, and sizes of row groups."""
        groups = [[PurePosixPath(part.path).name, number] for part, number in self._parts]
        return hashlib.sha256(json.dumps([groups, self.counts]).encode()).hexdigest()

    def file_of(self, number: int) -> str:
        """See Groups."""
        return str(self._parts[number][0].path)

    def load(self, number: int, columns: Sequence[str]) -> pa.Table:
        """A row group. The last one is kept: the next window may begin in it."""
        if self._last is None or self._last[0] != number:
            fragment, group = self._parts[number]
            schema = self.schema
            found = {name: pc.field(name) if name in schema.names else pc.field(*name.split(".")) for name in columns}
            self._last = None  # Two need not be in memory.
            table = fragment.subset(row_group_ids=[group]).to_table(schema=schema, columns=found)
            self._last = number, table
        return self._last[1]


class RecordBatches(Groups):
    """The batches of a file of Arrow IPC, mapped into memory: nothing is decoded or copied.

    Args:
        path: The file.
        rows: The first rows are repeated until there are so many; None: as many as there are.
    """

    writable = False

    def __init__(self, path: str, rows: int | None = None) -> None:
        self._path = path
        with pa.memory_map(path) as file:
            reader = pa.ipc.open_file(file)
            self.schema = reader.schema
            self._batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        self.counts = [len(batch) for batch in self._batches]
        self._rows = rows

    def line(self, random: np.random.Generator | None) -> Line:
        """See Groups."""
        own = line = super().line(random)
        while self._rows is not None and 0 < len(line) < self._rows:
            line += own.cut(0, self._rows - len(line))
        return line

    def file_of(self, number: int) -> str:
        """See Groups."""
        return self._path

    def load(self, number: int, columns: Sequence[str]) -> pa.Table:
        """A batch."""
        return pa.Table.from_batches([self._batches[number]]).select(list(columns))
