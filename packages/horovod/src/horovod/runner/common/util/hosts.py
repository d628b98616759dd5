"""Lists of hosts."""

from __future__ import annotations

import re

__all__ = ["parse_hosts_and_slots"]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """The names of hosts in their order, and how many ranks each takes.

    Args:
        hosts: Such as "localhost:2,127.0.0.1:2,far:4".

    Raises:
        ValueError: One of them is no host.
    """
    found = {}
    for host in hosts.split(","):
        match = re.fullmatch(r"(?P<name>\S+?)(:(?P<slots>\d+))?", host.strip())
        if match is None:
            raise ValueError(f"hosts={hosts!r}: {host!r} is no host; write NAME:SLOTS, such as node1:4")
        found[match["name"]] = int(match["slots"] or 1)
    return list(found), found
