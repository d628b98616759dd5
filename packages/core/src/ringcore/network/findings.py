"""What was measured between hosts, and the topology that it shows."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from itertools import permutations

from ringcore.network.topology import Host, Interface, Link, Topology

# Rates that differ by less are the same, as far as a short measurement tells.
_ALIKE = 0.85
# Rates that differ by less are one, if they are measured twice.
_CLEAR = 0.9
# Ports of a switch that differ by less are taken for equal: what is planned then is right for all of them.
_EVEN = 0.7
# A link that has less than this part of its rate in company shares something with that company.
_SLOWED = 0.8

Matrix = list[list[float]]  # by where something begins, and where it ends


def rounds_of_pairs(hosts: int) -> list[list[tuple[int, int]]]:
    """Every directed pair once, in rounds in which each host sends to one other and receives from one other."""
    return [[(host, (host + shift) % hosts) for host in range(hosts)] for shift in range(1, hosts)]


@dataclass(frozen=True)
class Findings:
    """What was measured, in bits a second and seconds.

    Attributes:
        names: Of the hosts.
        send: What each gets away when it sends to all others at once.
        receive: What each gets when all others send to it at once.
        loaded: What each pair has while other pairs are busy, each host with one other.
        alone: What each pair has while no other is busy.
        latency_s: One way, at its shortest.
        loaded_latency_s: One way, while the pair and others were busy.
        interfaces: Of each host, the one first that was measured.
        ranks: Of each host, groups of ranks that share memory.
    """

    names: tuple[str, ...]
    send: list[float]
    receive: list[float]
    loaded: Matrix
    alone: Matrix
    latency_s: Matrix
    loaded_latency_s: Matrix
    interfaces: tuple[tuple[Interface, ...], ...] = ()
    ranks: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All directed pairs."""
        return list(permutations(range(len(self.names)), 2))

    def port(self, start: int, end: int) -> float:
        """What the ports of both ends let through."""
        return min(self.send[start], self.receive[end])

    def slowed(self, start: int, end: int) -> bool:
        """Whether the pair had clearly less in company than alone."""
        return self.loaded[start][end] < _SLOWED * self.alone[start][end]


def doubtful_pairs(findings: Findings) -> list[tuple[int, int]]:
    """Pairs that had less in company than their ports let through: what they have alone has to be looked at."""
    return [(i, j) for i, j in findings.pairs if findings.loaded[i][j] < _CLEAR * findings.port(i, j)]


def unclear_ports(findings: Findings) -> tuple[list[int], list[int]]:
    """Hosts that send, and that receive, in all neither what their best pair has nor what their pairs have together.

    The first is a port that all share, the second are links of their own. What is neither may be so; or the measurement
    was disturbed.
    """

    def unclear(total: float, pairs: list[float]) -> bool:
        alike = (max(pairs), sum(pairs))
        return not any(_CLEAR * each <= total <= each / _CLEAR for each in alike)

    hosts = range(len(findings.names))
    out = [[findings.loaded[host][other] for other in hosts if other != host] for host in hosts]
    into = [[findings.loaded[other][host] for other in hosts if other != host] for host in hosts]
    return (
        [host for host in hosts if unclear(findings.send[host], out[host])],
        [host for host in hosts if unclear(findings.receive[host], into[host])],
    )


def shares_port(findings: Findings, host: int) -> tuple[bool, bool]:
    """Whether what a host sends goes through one port, and whether what it receives does."""
    others = [other for other in range(len(findings.names)) if other != host]
    out = sum(findings.alone[host][other] for other in others)
    into = sum(findings.alone[other][host] for other in others)
    return findings.send[host] < _ALIKE * out, findings.receive[host] < _ALIKE * into


def racks_of(findings: Findings) -> list[int]:
    """Numbers the groups of hosts that share what leads out of them, by host."""
    hosts = range(len(findings.names))

    def near(i: int, j: int) -> bool:
        both = ((i, j), (j, i))
        return all(not findings.slowed(*pair) and _at_port(findings, *pair) for pair in both)

    racks = [-1] * len(findings.names)
    for first in hosts:
        if racks[first] >= 0:
            continue
        number, left = max(racks) + 1, [first]
        while left:
            host = left.pop()
            racks[host] = number
            left += [other for other in hosts if racks[other] < 0 and other not in left and near(host, other)]
    return racks


def below_card(findings: Findings) -> list[int]:
    """Hosts that send, or receive, less than half of what the card says that was measured."""
    cards = {number: each[0].bits_per_s for number, each in enumerate(findings.interfaces) if each}
    return [
        number
        for number, card in cards.items()
        if card is not None and min(findings.send[number], findings.receive[number]) < card / 2
    ]


def derive(findings: Findings) -> Topology:
    """The topology that was measured: a switch, racks, or links of their own between all hosts."""
    interfaces = dict(zip(findings.names, findings.interfaces, strict=False))
    ranks = dict(zip(findings.names, findings.ranks, strict=False))
    found = _derived(findings)
    hosts = tuple(
        dataclasses.replace(host, interfaces=interfaces.get(host.name, ()), ranks=ranks.get(host.name, ()))
        for host in found.hosts
    )
    return dataclasses.replace(found, hosts=hosts)


def _derived(findings: Findings) -> Topology:
    racks = racks_of(findings)
    count = max(racks) + 1
    slowed = any(findings.slowed(i, j) for i, j in findings.pairs if racks[i] != racks[j])
    inside = all(_at_port(findings, i, j) for i, j in findings.pairs if racks[i] == racks[j])
    if 1 < count < len(racks) and slowed and inside:
        return _racks(findings, racks)
    if all(_at_port(findings, i, j) for i, j in findings.pairs):
        return _one_switch(findings)
    return _own_links(findings)


def _at_port(findings: Findings, start: int, end: int) -> bool:
    """Whether nothing but ports limits what the pair has alone."""
    return findings.alone[start][end] >= _SLOWED * findings.port(start, end)


def _one_switch(findings: Findings) -> Topology:
    rates = findings.send + findings.receive
    even = min(rates) >= _EVEN * max(rates)
    middle = statistics.median(rates)
    latency_s = statistics.median(findings.latency_s[i][j] for i, j in findings.pairs) / 2
    send, receive = ([middle] * len(rates), [middle] * len(rates)) if even else (findings.send, findings.receive)
    return _joined(findings.names, ["switch"] * len(findings.names), send, receive, latency_s)


def _joined(
    names: tuple[str, ...], switches: list[str], send: list[float], receive: list[float], latency_s: float
) -> Topology:
    links = []
    for name, switch, away, here in zip(names, switches, send, receive, strict=False):
        links += [Link(name, switch, away, latency_s), Link(switch, name, here, latency_s)]
    return Topology(tuple(map(Host, names)), tuple(dict.fromkeys(switches)), tuple(links))


def _racks(findings: Findings, racks: list[int]) -> Topology:
    near = [findings.latency_s[i][j] for i, j in findings.pairs if racks[i] == racks[j]]
    far = [findings.latency_s[i][j] for i, j in findings.pairs if racks[i] != racks[j]]
    hop_s = statistics.median(near or far) / 2
    names = [f"rack{number}" for number in range(max(racks) + 1)]
    inside = _joined(findings.names, [names[rack] for rack in racks], findings.send, findings.receive, hop_s)
    between_s = max(0.0, statistics.median(far) - 2 * hop_s)
    out = [
        _together(findings, {(i, j) for i, j in findings.pairs if racks[i] == rack != racks[j]})
        for rack in range(len(names))
    ]
    into = [
        _together(findings, {(i, j) for i, j in findings.pairs if racks[j] == rack != racks[i]})
        for rack in range(len(names))
    ]
    if len(names) == 2:
        links = [
            Link(names[0], names[1], min(out[0], into[1]), between_s),
            Link(names[1], names[0], min(out[1], into[0]), between_s),
        ]
        return Topology(inside.hosts, inside.switches, (*inside.links, *links))
    outside = _joined(tuple(names), ["between racks"] * len(names), out, into, between_s / 2)
    return Topology(inside.hosts, (*inside.switches, *outside.switches), (*inside.links, *outside.links))


def _together(findings: Findings, pairs: set[tuple[int, int]]) -> float:
    """The most that these pairs had at once."""
    rounds = rounds_of_pairs(len(findings.names))
    return max(sum(findings.loaded[i][j] for i, j in each if (i, j) in pairs) for each in rounds)


def _own_links(findings: Findings) -> Topology:
    hosts = []
    for number, name in enumerate(findings.names):
        out, into = shares_port(findings, number)
        hosts.append(Host(name, findings.send[number] if out else None, findings.receive[number] if into else None))
    links = [
        Link(findings.names[i], findings.names[j], findings.alone[i][j], findings.latency_s[i][j])
        for i, j in findings.pairs
    ]
    return Topology(tuple(hosts), (), tuple(links))
