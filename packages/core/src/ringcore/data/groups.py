"""The row groups of a Parquet data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ringcore.data.columns import leaves_of
from ringcore.data.line import Line, Segment


class RowGroups:
    """Every row group of a data set, by number.

    Args:
        source: Path, paths, or dataset.
        filesystem: Of pyarrow or fsspec.

    Raises:
        ValueError: It is not Parquet.
    """

    def __init__(self, source: Any, filesystem: Any) -> None:
        self._dataset = (
            source
            if isinstance(source, ds.Dataset)
            else ds.dataset(_text(source), filesystem=filesystem, format="parquet", partitioning="hive")
        )
        self._parts: list[tuple[Any, int]] = []
        self.counts: list[int] = []
        for fragment in self._dataset.get_fragments():
            if not isinstance(fragment, ds.ParquetFileFragment):
                raise ValueError(f"{source} is not Parquet: {type(fragment).__name__}")
            for group in fragment.row_groups:
                self._parts.append((fragment, group.id))
                self.counts.append(group.num_rows)
        self._last: tuple[int, pa.Table] | None = None

    def leaves(self, wanted: Sequence[str] | None) -> dict[str, pa.DataType]:
        """Columns and their types.

        Raises:
            ValueError: One is not there, or there are none.
        """
        there = leaves_of(self._dataset.schema)
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
            table = self._group(group, columns)
            files[self._parts[group][0].path] = None
            if isinstance(numbers, range):
                tables.append(table.slice(numbers.start, len(numbers)))
            else:
                tables.append(table.take(pa.array(numbers)))
        first, *more = files
        return pa.concat_tables(tables), f"{first}{f' and {len(more)} more file(s)' if more else ''}"

    def _group(self, number: int, columns: Sequence[str]) -> pa.Table:
        """A row group. The last one is kept: the next window may begin in it."""
        if self._last is None or self._last[0] != number:
            fragment, group = self._parts[number]
            schema = self._dataset.schema
            found = {name: pc.field(name) if name in schema.names else pc.field(*name.split(".")) for name in columns}
            self._last = None  # Two need not be in memory.
            table = fragment.subset(row_group_ids=[group]).to_table(schema=schema, columns=found)
            self._last = number, table
        return self._last[1]


def _text(source: Any) -> Any:
    return [str(path) for path in source] if isinstance(source, (list, tuple)) else str(source)
