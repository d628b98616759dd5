"""Which hosts are this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterable

__all__ = ["filter_local_addresses", "with_one_local_host"]


def filter_local_addresses(all_host_addresses: Iterable[str]) -> list[str]:
    """The hosts that are other machines, in their order."""
    here = {"localhost", "127.0.0.1", "[::1]", socket.gethostname()}
    return [name for name in all_host_addresses if name not in here]


def with_one_local_host(hosts: str) -> str:
    """A list of hosts in which this machine has all its slots in one place, as ringrun asks for.

    Args:
        hosts: Such as "localhost:2,127.0.0.1:2,far:4".
    """
    pairs = [(name, int(slots or 1)) for name, _, slots in (host.strip().partition(":") for host in hosts.split(","))]
    others = set(filter_local_addresses(name for name, _ in pairs))
    merged: dict[str, int] = {}
    for name, slots in pairs:
        place = name if name in others else "localhost"
        merged[place] = merged.get(place, 0) + slots
    return ",".join(f"{name}:{slots}" for name, slots in merged.items())
