"""A running job, and windows in which something disturbs it or nothing does: what a step takes in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True)
class Window:
    """Some seconds of a job.

    Attributes:
        disturbed: Whether anything happened that may cost it time.
        begin: By the clock of the ranks, `time.monotonic`.
        end: The same.
    """

    disturbed: bool
    begin: float
    end: float


def step_times(window: Window, ranks: Sequence[np.ndarray]) -> tuple[float, float]:
    """Milliseconds of a step, and of processor time that all ranks together use for it, in a window.

    Args:
        window: In which at least two steps have ended.
        ranks: What each rank of `looking_rank.py` has written: a row a step.
    """
    ends = ranks[0][:, 0]
    inside = np.flatnonzero((ends >= window.begin) & (ends <= window.end))
    first, last = inside[0], inside[-1]
    steps = last - first
    used = sum(rank[last, 1] - rank[first, 1] for rank in ranks)
    return (ends[last] - ends[first]) / steps * 1e3, used / steps * 1e3


def median_with_bounds(values: np.ndarray) -> tuple[float, float, float]:
    """The median, and between which bounds it lies in 95 of 100 resamples."""
    drawn = np.random.default_rng(1).choice(values, (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(values)), float(low), float(high)
