"""Which of several ways to do a step is the quickest: successive halving (Jamieson and Talwalkar 2016)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

# Another way than the first one has to be quicker by so much.
_GAIN = 0.02


class Trials:
    """Ways take turns, the slower half is left out, and so on; knows no clock and no other rank.

    The first way is what would be done without trials. It stays until the end, where one other way is left that has to
    beat it, side by side with it. In a round the ways take turns there and back, so that whatever makes all steps
    slower or quicker in the course of it counts for each of them alike.

    Attributes:
        left: The ways that may still be the quickest, the first one at the beginning; one when it is decided.

    Args:
        ways: Their numbers.
        steps: That a way is measured for in each of its turns; twice as many in the last round.
    """

    def __init__(self, ways: Sequence[int], steps: int) -> None:
        self.left = list(ways)
        self._steps = steps
        self._begin_round()

    def _begin_round(self) -> None:
        several = len(self.left) > 1
        self._turns = [*self.left, *reversed(self.left)] if several else []
        self._turn_steps = self._steps * (2 if len(self.left) == 2 else 1)
        self._taken = 0
        self._seconds: dict[int, list[float]] = {way: [] for way in self.left}

    @property
    def way(self) -> int:
        """How the next step is to be done."""
        return self._turns[0] if self._turns else self.left[0]

    @property
    def decided(self) -> bool:
        """Whether only the quickest is left."""
        return len(self.left) == 1

    def note(self, seconds: float) -> bool:
        """Tell how long a step has taken that was done the way of `way`; true at the end of a round."""
        if self._taken > 0:  # The first step of a turn meets what the one before has left, and sets things up.
            self._seconds[self.way].append(seconds)
        self._taken += 1
        if self._taken > self._turn_steps:
            self._turns.pop(0)
            self._taken = 0
        return not self._turns

    def medians(self) -> list[float]:
        """How long a step has taken in this round, in seconds, in the order of `left`."""
        return [statistics.median(self._seconds[way]) for way in self.left]

    def end_round(self, medians: Sequence[float]) -> None:
        """Leave out the slower ones; `medians`: of all ranks, and the same on each of them."""
        first, *others = zip(medians, self.left, strict=True)
        others.sort()
        if len(others) > 1:
            self.left = [first[1], *(way for _, way in others[: len(others) // 2])]
        else:
            self.left = [way for median, way in others if median < first[0] * (1 - _GAIN)] or [first[1]]
        self._begin_round()
