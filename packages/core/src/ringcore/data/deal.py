"""How the rows of an epoch, or what is left of one, are dealt to ranks, windows and batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ringcore.data.line import Line


class Rule(NamedTuple):
    """What all ranks have in common when they deal.

    Attributes:
        size: Number of ranks.
        batch_size: Rows of a batch of one rank.
        window_rows: So many rows are shuffled among themselves; a multiple of the batch. 0: in order.
    """

    size: int
    batch_size: int
    window_rows: int


@dataclass(frozen=True)
class Window:
    """Rows that are in memory at the same time.

    Attributes:
        rows: They.
        order: In which order they are handed out; None: as they stand.
    """

    rows: Line
    order: np.ndarray[Any, Any] | None


class Deal:
    """A line of rows, dealt by a rule: parts of all ranks differ by a row at most.

    Args:
        line: The rows, the same on all ranks.
        rule: How.
        seed: What the shuffle follows from.
    """

    def __init__(self, line: Line, rule: Rule, seed: tuple[int, ...]) -> None:
        self._line = line
        self._rule = rule
        self._seed = seed
        self._step = rule.window_rows or rule.batch_size * max(1, 65536 // rule.batch_size)

    def batches(self, rank: int, *, padded: bool) -> int:
        """How many a rank has; all have the same number if they are padded."""
        return -(-self._rows(rank, padded=padded) // self._rule.batch_size)

    def windows(self, batches: int, rank: int, *, padded: bool) -> list[tuple[int, int]]:
        """Where this rank's windows begin and end in its part, from that of this batch on."""
        begin = batches * self._rule.batch_size // self._step * self._step
        rows = self._rows(rank, padded=padded)
        return [(start, min(start + self._step, rows)) for start in range(begin, rows, self._step)]

    def window(self, span: tuple[int, int], rank: int) -> Window:
        """The rows of a window. A rank that has a row less than others repeats one where it is padded."""
        first, last = self._part(rank)
        rows = self._line.cut(first + span[0], min(first + span[1], last))
        if len(rows) < span[1] - span[0]:
            rows += self._line.cut(0, 1)
        if not self._rule.window_rows:
            return Window(rows, None)
        # As the window and not the rank has a seed, ranks that have the same rows shuffle them alike.
        random = np.random.default_rng([*self._seed, first + span[0]])
        return Window(rows, random.permutation(len(rows)))

    def rest(self, batches: int, *, padded: bool) -> Line:
        """What is left for another deal when every rank has had so many batches."""
        left = Line([])
        for rank in range(self._rule.size):
            first, last = self._part(rank)
            for span in self.windows(batches, rank, padded=padded)[:1]:
                window = self.window(span, rank)
                had = batches * self._rule.batch_size - span[0]
                places = np.arange(len(window.rows)) if window.order is None else window.order
                places = np.sort(places[had:])
                left += window.rows.pick(places[places < last - first - span[0]])
                left += self._line.cut(first + span[1], last)
        return left

    def _part(self, rank: int) -> tuple[int, int]:
        each, more = divmod(len(self._line), self._rule.size)
        return rank * each + min(rank, more), (rank + 1) * each + min(rank + 1, more)

    def _rows(self, rank: int, *, padded: bool) -> int:
        first, last = self._part(0 if padded else rank)
        return last - first
