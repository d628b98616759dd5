"""What a rank of an elastic job tells its launcher that is slower than the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Straggler:
    """How slow it is.

    Attributes:
        own_s: So many seconds it works between two commits, on average, in which it does not wait for the others ...
        others_s: ... and so many a rank does which half of all are quicker than.
        steps: How many commits that was measured over.
    """

    own_s: float
    others_s: float
    steps: int
