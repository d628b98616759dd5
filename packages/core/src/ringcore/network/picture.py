"""What was measured between hosts, as tables and as a picture."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import IO

from ringcore._display import new_figure, print_table
from ringcore.network.findings import Findings, below_card, shares_port
from ringcore.network.topology import Host, Interface, Topology
from ringcore.network.units import price_text, ranks_text, rate_text, seconds_text

_MOST_PAIRS = 64  # rows of the second table
_MOST_PRICED = 8  # links that are named
_MOST_GROUPS = 8  # of ranks that are named


def print_tables(topology: Topology, findings: Findings | None, file: IO[str] | None = None) -> None:
    """Print what was measured; with rich where that is installed.

    Args:
        topology: What follows from it.
        findings: What was measured; None: there is one host.
        file: Where to; None is standard output.
    """
    out = file or sys.stdout
    if findings is None:
        print("all ranks are on one host: there is no network between them", file=out)
        for host in topology.hosts:
            print(f"{host.name}: {_sharing(host.ranks)}", file=out)
        return
    headings = ("host", "sends", "receives", "its links", "over", "ranks")
    print_table(headings, _hosts(findings), title="hosts", file=out)
    for number in below_card(findings):
        print(
            f"{findings.names[number]}: less than half of what {_card(findings, number)} carries; look at its cable, "
            "at the switch, and at what else uses them",
            file=out,
        )
    pairs = _pairs(findings)
    headings = ("from", "to", "alone", "beside others", "latency", "beside others")
    print_table(headings, pairs[:_MOST_PAIRS], title="links", file=out)
    if len(pairs) > _MOST_PAIRS:
        print(f"and {len(pairs) - _MOST_PAIRS} more, of {len(pairs)}", file=out)
    print(f"planned for: {describe(topology)}", file=out)


def describe(topology: Topology) -> str:
    """One sentence: its shape, who shares memory, and what has a price."""
    priced = [link for link in topology.links if link.price_per_gb is not None]
    told = [f"{link.start} to {link.end} {price_text(link.price_per_gb or 0)}" for link in priced[:_MOST_PRICED]]
    if len(priced) > _MOST_PRICED:
        told.append(f"and {len(priced) - _MOST_PRICED} more")
    priced_text = f"; what goes through these costs: {', '.join(told)}" if told else ""
    return _shape(topology) + _memory(topology) + priced_text


def _sharing(groups: Sequence[Sequence[int]]) -> str:
    """Which ranks of a host share memory."""
    return "; ".join(ranks_text(group) + (" share memory" if len(group) > 1 else "") for group in groups)


def _memory(topology: Topology) -> str:
    """Where any ranks share memory: which."""
    groups = [ranks_text(group) for host in topology.hosts for group in host.ranks if len(group) > 1]
    if len(groups) > _MOST_GROUPS:
        groups[_MOST_GROUPS:] = [f"{len(groups) - _MOST_GROUPS} more groups"]
    return f"; memory is shared by {' and by '.join(groups)}" if groups else ""


def _shape(topology: Topology) -> str:
    if not topology.switches:
        return f"{len(topology.hosts)} hosts, each with a link of its own to each other"
    joined = ", ".join(
        f"{switch} ({', '.join(names)})"
        for switch in topology.switches
        if (names := [link.start for link in topology.links if link.end == switch])
    )
    alike = len({link.bits_per_s for link in topology.links}) == 1
    return f"{len(topology.hosts)} hosts{', alike,' if alike else ''} at {joined}"


def _hosts(findings: Findings) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for number, name in enumerate(findings.names):
        out, into = shares_port(findings, number)
        shares = "share a port" if out and into else "share a port one way" if out or into else "are its own"
        if len(findings.names) == 2:
            shares = "only one"
        rates = rate_text(findings.send[number]), rate_text(findings.receive[number])
        sharing = _sharing(findings.ranks[number]) if findings.ranks else ""
        rows.append((name, *rates, shares, _card(findings, number), sharing))
    return rows


def _card(findings: Findings, number: int) -> str:
    """The interface that was measured."""
    own = findings.interfaces[number] if findings.interfaces else ()
    return _with_speed(own[0]) if own else ""


def _with_speed(interface: Interface) -> str:
    speed = "" if interface.bits_per_s is None else f" ({rate_text(interface.bits_per_s)})"
    return f"{interface.name}{speed}"


def _pairs(findings: Findings) -> list[tuple[str, ...]]:
    """The slowest first."""
    return [
        (
            findings.names[i],
            findings.names[j],
            rate_text(findings.alone[i][j]),
            rate_text(findings.loaded[i][j]),
            seconds_text(findings.latency_s[i][j]),
            seconds_text(findings.loaded_latency_s[i][j]),
        )
        for i, j in sorted(findings.pairs, key=lambda pair: findings.alone[pair[0]][pair[1]])
    ]


def draw(topology: Topology, path: str) -> None:
    """Draw hosts with their interfaces and ranks, switches and links: the wider a line, the quicker the link.

    Args:
        topology: To draw.
        path: Of the picture; its ending says which kind: .svg, .png, .pdf.

    Raises:
        InvalidArgument: matplotlib is not installed.
    """
    figure = new_figure(6.4, 6.4)
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set_aspect("equal")
    at = _places(topology)
    most = max((link.bits_per_s for link in topology.links), default=1.0)
    for link in topology.links:
        (x, y), (to_x, to_y) = at[link.start], at[link.end]
        width = 0.5 + 3.5 * link.bits_per_s / most
        axes.plot([x, to_x], [y, to_y], color="tab:blue", alpha=0.4, linewidth=width, zorder=1)
        # Beside the end where it begins: the other direction's is at the other end.
        axes.text(0.7 * x + 0.3 * to_x, 0.7 * y + 0.3 * to_y, rate_text(link.bits_per_s), fontsize=7, ha="center")
    more = {host.name: _below_name(host) for host in topology.hosts}
    for name, (x, y) in at.items():
        colour = "lightgrey" if name in topology.switches else "white"
        text = "\n".join([name, *more.get(name, ())])
        axes.text(x, y, text, ha="center", va="center", bbox={"boxstyle": "round", "facecolor": colour}, zorder=2)
    axes.margins(0.15)
    figure.savefig(path)


def _below_name(host: Host) -> list[str]:
    """Lines below its name: its interfaces, and which ranks share its memory."""
    ranks = [f"{ranks_text(group)}{': shared memory' if len(group) > 1 else ''}" for group in host.ranks]
    return [*map(_with_speed, host.interfaces), *ranks]


def _places(topology: Topology) -> dict[str, tuple[float, float]]:
    """Hosts on a circle, those of a switch beside each other; each switch between its own and the middle."""
    names = [host.name for host in topology.hosts]
    switch_of = {
        link.start: link.end for link in topology.links if link.start in names and link.end in topology.switches
    }
    names.sort(key=lambda name: switch_of.get(name, ""))
    at = {}
    for number, name in enumerate(names):
        angle = math.tau * number / len(names)
        at[name] = (math.cos(angle), math.sin(angle))
    for switch in topology.switches:
        own = [at[name] for name in names if switch_of.get(name) == switch]
        middle = [0.5 * sum(place[axis] for place in own) / max(1, len(own)) for axis in (0, 1)]
        at[switch] = (middle[0], middle[1])
    return at
