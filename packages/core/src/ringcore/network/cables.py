"""What a topology means for the hosts of a job: the cables that the engine plans with."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringcore._errors import InvalidArgument
from ringcore.network.topology import Host, Link, Topology

# Between ranks of one host that share no memory: what the kernel's loopback carries, about.
_IN_HOST = (10e-6, 2e9)

# From, to, latency, bytes a second. Hosts have the engine's numbers; what passes on has the numbers behind them.
Cable = tuple[int, int, float, float]
# Latency and bytes a second of the usual way between hosts, and the cables where the ways differ.
Network = tuple[float, float, list[Cable]]


@dataclass(frozen=True)
class Place:
    """A host of the job.

    Attributes:
        name: Its host name.
        addresses: Of its interfaces, without the length of their networks.
        ranks: That are on it, for errors.
    """

    name: str
    addresses: tuple[str, ...]
    ranks: tuple[int, ...]


def network_of(topology: Topology, places: Sequence[Place]) -> Network:
    """What lies between the hosts of a job.

    Args:
        topology: What was told.
        places: The hosts, by the engine's numbers. Several may be one host: ranks that share no memory.

    Raises:
        InvalidArgument: A host is not in the topology.
    """
    known = {host.name: host for host in topology.hosts}
    at: dict[str, list[int]] = {}
    for number, name in enumerate(names_of(topology, places)):
        at.setdefault(name, []).append(number)
    links = _between(topology, set(at))
    even = _even(topology, at, links)
    return even or _Weaver(len(places), topology, at).weave(links, known)


def _between(topology: Topology, hosts: set[str]) -> list[Link]:
    """The links that lead from one of the hosts to another, without switches that join them to nothing."""
    there = hosts | set(topology.switches)
    while True:
        links = [link for link in topology.links if {link.start, link.end} <= there]
        pairs = {pair for link in links for pair in ((link.start, link.end), (link.end, link.start))}
        dead = {switch for switch in there - hosts if sum(start == switch for start, _ in pairs) < 2}
        if not dead:
            return links
        there -= dead


def names_of(topology: Topology, places: Sequence[Place]) -> list[str]:
    """What the topology calls each of the places.

    Args:
        topology: What was told.
        places: The hosts.

    Raises:
        InvalidArgument: A host is not in the topology.
    """
    known = {host.name for host in topology.hosts}
    return [_name_of(place, known) for place in places]


def _name_of(place: Place, known: set[str]) -> str:
    for name in (*place.addresses, place.name):
        if name in known:
            return name
    raise InvalidArgument(
        f"the topology has no host {place.name!r}, where ranks {list(place.ranks)} are; it has {sorted(known)}. "
        f"Remedy: add it with its links, by its name or one of its addresses ({', '.join(place.addresses) or 'none'})"
    )


def _even(topology: Topology, at: dict[str, list[int]], links: list[Link]) -> Network | None:
    """One switch that everybody is joined to alike."""
    ports = [host for host in topology.hosts if host.name in at]
    plain = all(host.send_bits_per_s is None and host.receive_bits_per_s is None for host in ports)
    switches = {end for link in links for end in (link.start, link.end)} - set(at)
    alike = len({(link.bits_per_s, link.latency_s) for link in links}) == 1
    if len(switches) != 1 or not plain or not alike or any(len(numbers) > 1 for numbers in at.values()):
        return None
    switch = switches.pop()
    if {(link.start, link.end) for link in links} != {ends for name in at for ends in ((name, switch), (switch, name))}:
        return None
    return 2 * links[0].latency_s, links[0].bits_per_s / 8, []


@dataclass
class _Weaver:
    """Numbers the places that pass on what comes: switches, and the ports that the links of a host share."""

    places: int
    topology: Topology
    at: dict[str, list[int]]
    cables: list[Cable] = field(default_factory=list)

    def weave(self, links: list[Link], known: dict[str, Host]) -> Network:
        used = {end for link in links for end in (link.start, link.end)}
        out = {switch: self._place() for switch in self.topology.switches if switch in used}
        into = dict(out)
        for name, numbers in self.at.items():
            host = known[name]
            out[name] = self._port(numbers, host.send_bits_per_s, outwards=True)
            into[name] = self._port(numbers, host.receive_bits_per_s, outwards=False)
            if len(numbers) > 1:
                inside = self._place()
                for number in numbers:
                    self.cables += [(number, inside, *_IN_HOST), (inside, number, *_IN_HOST)]
        for link in links:
            self.cables.append((out[link.start], into[link.end], link.latency_s, link.bits_per_s / 8))
        latency_s = statistics.median(link.latency_s for link in links) if links else _IN_HOST[0]
        bytes_per_s = statistics.median(link.bits_per_s for link in links) / 8 if links else _IN_HOST[1]
        return latency_s, bytes_per_s, self.cables

    def _place(self) -> int:
        self.places += 1
        return self.places - 1

    def _port(self, numbers: list[int], bits_per_s: float | None, *, outwards: bool) -> int:
        """Where the links of a host begin, or end."""
        port = numbers[0]
        if len(numbers) > 1:
            port = self._place()
            self.cables += [(n, port, *_IN_HOST) if outwards else (port, n, *_IN_HOST) for n in numbers]
        if bits_per_s is None:
            return port
        shared = self._place()
        ends = (port, shared) if outwards else (shared, port)
        self.cables.append((*ends, 0.0, bits_per_s / 8))
        return shared
