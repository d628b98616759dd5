"""Rows of row groups in a line, which is cut into the parts of ranks. No file is read here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Segment(NamedTuple):
    """Some rows of a row group.

    Attributes:
        group: The row group's number.
        rows: Numbers of rows in it, ascending: a range or an array.
    """

    group: int
    rows: Any


class Line:
    """Segments one behind the other; a row's place is its number in the line."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = [segment for segment in segments if len(segment.rows)]
        self._ends = np.cumsum([len(segment.rows) for segment in self.segments], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __add__(self, other: Line) -> Line:
        return Line([*self.segments, *other.segments])

    def cut(self, start: int, stop: int) -> Line:
        """The rows from place `start` to before `stop`."""
        found = []
        for index in range(int(np.searchsorted(self._ends, start, "right")), len(self.segments)):
            group, rows = self.segments[index]
            begin = int(self._ends[index]) - len(rows)
            if begin >= stop:
                break
            found.append(Segment(group, rows[max(start - begin, 0) : stop - begin]))
        return Line(found)

    def pick(self, places: np.ndarray[Any, Any]) -> Line:
        """The rows at these places, which ascend."""
        found = []
        for (group, rows), end in zip(self.segments, self._ends, strict=True):
            inside = places[(places >= end - len(rows)) & (places < end)] - (end - len(rows))
            found.append(Segment(group, np.asarray(rows)[inside]))
        return Line(found)
