"""The times that bandwidth alone allows a step's communication, without latency, cores or queues.

Cables are full duplex and carry B bytes a second in each direction; there are n workers, S servers and M bytes of
gradients. Servers answer with M bytes of weights.
"""

from __future__ import annotations

from collections.abc import Sequence


def ring_s(workers: int, nbytes: float, rate: float) -> float:
    """Every worker sends 2 (n - 1) / n of the data (Patarasuk & Yuan 2009)."""
    return 2 * (workers - 1) / workers * nbytes / rate


def servers_s(workers: int, servers: int, tensors: Sequence[int], rate: float) -> float:
    """Tensors pass two stages of equal speed one after another, so M plus the largest has to pass.

    The first stage is all pushes of a tensor, the second all its answers, which begin when every worker has pushed it.
    The narrower of the workers' and the servers' cables sets the speed of both.
    """
    return max(1.0, workers / servers) * (sum(tensors) + max(tensors)) / rate


def servers_range_s(workers: int, servers: int, nbytes: float, rate: float) -> tuple[float, float]:
    """From pushes and answers that overlap wholly, to answers that begin when all is pushed."""
    once = max(1.0, workers / servers) * nbytes / rate
    return once, 2 * once
