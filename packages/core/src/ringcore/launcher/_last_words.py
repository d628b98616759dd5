"""Holds back what ranks print when they fail: the summary tells it once, for all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Also behind the mark that torch.distributed's exception hook puts before each line. A script that is no Python has no
# traceback, only the place.
_BEGINS = re.compile(rb"^(\[rank\d+\]: ?)?(Traceback \(most recent call last\):|  File \".*\", line \d+)\s*$")
_MOST_LINES = 1000


class LastWords:
    """What ranks have written to standard error from a traceback on.

    A rank that goes on after it is none of its last words, and is shown like all else; see `release`.
    """

    def __init__(self) -> None:
        self._held: dict[int, list[bytes]] = {}

    def take(self, rank: int, lines: list[bytes]) -> list[bytes]:
        """Hold lines back, from a traceback on.

        Args:
            rank: Who wrote them.
            lines: Complete ones.

        Returns:
            Those that are to be shown now.
        """
        if rank in self._held:
            self._held[rank] += lines
            return self.release(rank) if len(self._held[rank]) > _MOST_LINES else []
        begin = next((index for index, line in enumerate(lines) if _BEGINS.match(line)), None)
        if begin is None:
            return lines
        self._held[rank] = lines[begin:]
        return lines[:begin]

    def holds(self, rank: int) -> bool:
        """Whether lines of this rank are held back."""
        return rank in self._held

    def release(self, rank: int) -> list[bytes]:
        """What was held back of a rank."""
        return self._held.pop(rank, [])

    def all(self) -> Iterator[tuple[int, bytes]]:
        """By rank, what is held back."""
        return ((rank, b"".join(lines)) for rank, lines in sorted(self._held.items()))
