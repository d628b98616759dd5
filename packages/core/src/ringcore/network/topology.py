"""What lies between hosts, as values."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringcore.network.units import price_text, rate_text, seconds_text

VERSION = 1


@dataclass(frozen=True)
class Interface:
    """An interface of a host, for whoever reads the file: plans go by the links.

    Attributes:
        name: What the host calls it.
        address: IPv4 or IPv6.
        bits_per_s: What its card says that it carries; None where it says nothing.
    """

    name: str
    address: str
    bits_per_s: float | None = None


@dataclass(frozen=True)
class Host:
    """A host.

    Attributes:
        name: Its host name, or one of its addresses.
        send_bits_per_s: What all that it sends to other hosts gets together; None: each of its links by itself.
        receive_bits_per_s: What all that it gets from other hosts gets together.
        interfaces: Those that are known; the first is the one that was measured.
        ranks: Of the job that measured: groups of ranks that share memory. For whoever reads the file: each job finds
            out by itself which of its ranks do.
    """

    name: str
    send_bits_per_s: float | None = None
    receive_bits_per_s: float | None = None
    interfaces: tuple[Interface, ...] = ()
    ranks: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Link:
    """One direction between two hosts or switches. What goes through it shares it.

    Attributes:
        start: Name of the host or switch where it begins.
        end: Where it ends.
        bits_per_s: Its rate.
        latency_s: One way.
        price_per_gb: What 10^9 bytes cost that go through it, in somebody's money; None: nothing.
    """

    start: str
    end: str
    bits_per_s: float
    latency_s: float
    price_per_gb: float | None = None


@dataclass(frozen=True)
class Topology:
    """Hosts and what lies between them.

    Attributes:
        hosts: Of the job, in any order; there may be more.
        switches: Places that pass on what comes, without data of their own.
        links: One direction each.
    """

    hosts: tuple[Host, ...]
    switches: tuple[str, ...]
    links: tuple[Link, ...]

    def to_json(self) -> str:
        """The text that `ringrun --topology-file` reads, a line for each host and link."""
        hosts = ",\n".join(f"  {json.dumps(_host(host))}" for host in self.hosts)
        links = ",\n".join(f"  {json.dumps(each)}" for each in _links(self.links))
        return (
            f'{{"ringcore_topology": {VERSION},\n "hosts": [\n{hosts}],\n'
            f' "switches": {json.dumps(self.switches)},\n "links": [\n{links}]}}\n'
        )

    def save(self, path: str | Path) -> None:
        """Write it for `ringrun --topology-file`.

        Args:
            path: Of the file.
        """
        Path(path).write_text(self.to_json(), encoding="utf-8")


def _host(host: Host) -> dict[str, Any]:
    own = [
        {"name": each.name, "address": each.address, **_rates(rate=each.bits_per_s)} for each in host.interfaces
    ]  # fmt: skip
    rates = _rates(send=host.send_bits_per_s, receive=host.receive_bits_per_s)
    ranks = {"ranks": [list(group) for group in host.ranks]} if host.ranks else {}
    return {"name": host.name, **rates, **({"interfaces": own} if own else {}), **ranks}


def _rates(**bits_per_s: float | None) -> dict[str, str]:
    return {key: rate_text(rate) for key, rate in bits_per_s.items() if rate is not None}


def _links(links: tuple[Link, ...]) -> list[dict[str, Any]]:
    """Links that are the same both ways as one."""
    known = {(link.start, link.end): link for link in links}
    found: list[dict[str, Any]] = []
    for link in links:
        back = known.get((link.end, link.start))
        both = back is not None and replace(back, start=link.start, end=link.end) == link
        if both and link.start > link.end:
            continue
        ends = {"between": [link.start, link.end]} if both else {"from": link.start, "to": link.end}
        price = {} if link.price_per_gb is None else {"price": price_text(link.price_per_gb)}
        found.append({**ends, "rate": rate_text(link.bits_per_s), "latency": seconds_text(link.latency_s), **price})
    return found
