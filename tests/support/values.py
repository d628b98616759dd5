"""Values for ranks, and how they compare: arrays of any framework that numpy understands."""

from __future__ import annotations

from typing import Any

import numpy as np
import ringcore


def of(rank: int, *shape: int) -> Any:
    """Random numbers of float64, the same wherever they are asked for."""
    return np.random.default_rng([rank, *shape]).standard_normal(shape)


def same_everywhere(value: Any) -> bool:
    """Whether all ranks have the same."""
    values = ringcore.allgather_object(value)
    return all(other == values[0] for other in values)


def distance(one: Any, other: Any) -> float:
    """The largest difference of two elements."""
    one, other = (x.asnumpy() if hasattr(x, "asnumpy") else np.asarray(x) for x in (one, other))
    assert one.shape == other.shape, (one.shape, other.shape)
    return float(np.abs(one - other).max(initial=0))
