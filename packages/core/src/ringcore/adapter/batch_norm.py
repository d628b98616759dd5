"""The statistics of batch normalisation over the batches of all ranks, for every framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Statistics(NamedTuple):
    """Of all ranks' batches together.

    Attributes:
        mean: Of each channel.
        variance: Of each channel, of the values that there are: not the estimate of that of others.
        count: How many values they were made of.
        centred: This rank's values without the mean.
    """

    mean: Any
    variance: Any
    count: Any
    centred: Any


def batch_statistics(
    values: Any,
    count: Any,
    *,
    sum_of: Callable[[Any], Any],
    over_ranks: Callable[[Sequence[Any], str], Sequence[Any]],
    spread: Callable[[Any], Any],
    constant: Callable[[Any], Any],
) -> Statistics:
    """Find the mean first and the variance around it: no digits are lost to cancellation.

    Ranks may have batches of different size, also empty ones. Where the framework records `sum_of` and `over_ranks`,
    gradients flow through the statistics.

    Args:
        values: This rank's batch, of a dtype that holds the sum of all ranks' batches: no 16-bit float.
        count: How many values this rank has, of each channel or of all alike; of that dtype as well.
        sum_of: The sum over a tensor like `values`, of each channel.
        over_ranks: Sums over the ranks, of all that it is given at once; takes what is summed, for a name.
        spread: One number a channel, in the shape in which it goes with `values`.
        constant: A count that all ranks have together, as what is divided by: it has no gradient.
    """
    total, counted = over_ranks([sum_of(values), count], "mean")
    divisor = constant(counted)
    mean = total / divisor
    centred = values - spread(mean)
    (squares,) = over_ranks([sum_of(centred * centred)], "variance")
    return Statistics(mean, squares / divisor, divisor, centred)
