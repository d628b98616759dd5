"""What goes through links that have a price."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ringcore.network.topology import Link, Topology


class Egress(NamedTuple):
    """What a collective sends through links that have a price.

    Attributes:
        nbytes: So much; each byte counts once, however many such links it goes through.
        price: Of them, in the money of the topology.
    """

    nbytes: float
    price: float


def egress_of(topology: Topology, sent: Iterable[tuple[str, str, float]]) -> Egress:
    """What transfers cost.

    Args:
        topology: With the prices.
        sent: From a host to a host: bytes.
    """
    ways: dict[tuple[str, str], list[Link]] = {}
    nbytes = price = 0.0
    for start, end, size in sent:
        if (start, end) not in ways:
            ways[start, end] = _way(topology, start, end)
        prices = [link.price_per_gb for link in ways[start, end] if link.price_per_gb is not None]
        price += sum(prices) * size / 1e9
        nbytes += size if prices else 0.0
    return Egress(nbytes, price)


def _way(topology: Topology, start: str, end: str) -> list[Link]:
    """Of the fewest links, through switches only, as the engine's (plan/ways.hpp)."""
    reached_by: dict[str, Link] = {}
    left = deque([start] if start != end else [])
    while left and end not in reached_by:
        at = left.popleft()
        for link in topology.links:
            if link.start == at and link.end != start and link.end not in reached_by:
                reached_by[link.end] = link
                left += [link.end] if link.end in topology.switches else []
    way: list[Link] = []
    while end in reached_by and (not way or end != start):
        way.append(reached_by[end])
        end = way[-1].start
    return way
