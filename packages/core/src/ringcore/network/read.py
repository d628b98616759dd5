"""Reads what lies between hosts from JSON, strictly: what is wrong is said with its line, and what to write instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ringcore._errors import InvalidArgument
from ringcore.network.lined import LinedObject, Reader
from ringcore.network.topology import VERSION, Host, Interface, Link, Topology
from ringcore.network.units import parse_price, parse_rate, parse_seconds

_MOST_BYTES = 1 << 22
_LATENCY_S = 25e-6  # where a link does not say it: that of a switch
_MOST_SECONDS = 60.0
_MOST_RANKS = 1 << 20


def read_file(path: str | Path) -> Topology:
    """Read a file.

    Args:
        path: Of the file.

    Raises:
        InvalidArgument: It cannot be read, or is wrong; with the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"the topology file {path} cannot be read: {error}. Remedy: name a file that is on the host of rank 0, as "
            "`ringcore topology --save` writes it"
        ) from None
    return read(text, str(path))


def read(text: str, origin: str = "the topology") -> Topology:
    """Read a text.

    Args:
        text: JSON, see docs/topology.md.
        origin: What errors call it.

    Raises:
        InvalidArgument: It is wrong; with the line.
    """
    return _Check(origin).topology(text)


class _Check:
    def __init__(self, origin: str) -> None:
        self._origin = origin

    def topology(self, text: str) -> Topology:
        if len(text) > _MOST_BYTES:
            raise InvalidArgument(f"{self._origin} has {len(text)} characters; {_MOST_BYTES} are read at most")
        try:
            whole = Reader(text).read()
        except json.JSONDecodeError as error:
            self._wrong(error.lineno, f"{error.msg} (column {error.colno})", "write JSON as in docs/topology.md")
        if not isinstance(whole, LinedObject):
            self._wrong(1, "it is no object", 'begin with {"ringcore_topology": 1, "hosts": [')
        self._keys(whole, {"ringcore_topology", "hosts", "links"}, {"switches", "comment"})
        if whole["ringcore_topology"] != VERSION:
            line = whole.line_of["ringcore_topology"]
            self._wrong(line, f"its version is {whole['ringcore_topology']!r}", f"write {VERSION}, or a newer ringcore")
        hosts = tuple(self._host(each, whole) for each in self._list(whole, "hosts"))
        switches = tuple(self._name(each, whole, "switches") for each in self._list(whole, "switches"))
        line = whole.line_of["hosts"]
        if not hosts:
            self._wrong(line, "it has no hosts", 'name them: "hosts": ["node1", "node2"]')
        names = [*(host.name for host in hosts), *switches]
        for name in names:
            if names.count(name) > 1:
                self._wrong(line, f"{name!r} names two hosts or switches", "give each a name of its own")
        links = self._links(whole, set(names))
        self._check_ranks(line, hosts)
        self._check_ways(line, Topology(hosts, switches, links))
        return Topology(hosts, switches, links)

    def _host(self, each: Any, whole: LinedObject) -> Host:
        if not isinstance(each, LinedObject):
            return Host(self._name(each, whole, "hosts"))
        self._keys(each, {"name"}, {"send", "receive", "interfaces", "ranks", "comment"})
        send, receive = (self._rate(each, key) for key in ("send", "receive"))
        interfaces = tuple(self._interface(one, each) for one in self._list(each, "interfaces"))
        ranks = tuple(self._group(one, each) for one in self._list(each, "ranks"))
        return Host(self._name(each["name"], each, "name"), send, receive, interfaces, ranks)

    def _group(self, each: Any, host: LinedObject) -> tuple[int, ...]:
        """Ranks that share memory."""
        numbers = each if isinstance(each, list) else []
        if not numbers or not all(type(rank) is int and 0 <= rank < _MOST_RANKS for rank in numbers):
            self._wrong(
                host.line_of["ranks"],
                f"{each!r} is no group of ranks that share memory",
                'write a list of groups: "ranks": [[0, 1], [2, 3]]',
            )
        return tuple(numbers)

    def _check_ranks(self, line: int, hosts: tuple[Host, ...]) -> None:
        """Each rank is in one group only."""
        seen: set[int] = set()
        for rank in (rank for host in hosts for group in host.ranks for rank in group):
            if rank in seen:
                self._wrong(line, f"rank {rank} is named twice", "name each rank in one group of one host")
            seen.add(rank)

    def _interface(self, each: Any, host: LinedObject) -> Interface:
        if not isinstance(each, LinedObject):
            self._wrong(
                host.line_of["interfaces"], f"{each!r} is no interface", 'write {"name": "eth0", "address": "10.0.0.1"}'
            )
        self._keys(each, {"name", "address"}, {"rate", "comment"})
        name, address = (self._name(each[key], each, key) for key in ("name", "address"))
        return Interface(name, address, self._rate(each, "rate"))

    def _rate(self, each: LinedObject, key: str) -> float | None:
        return self._value(each, key, parse_rate) if key in each else None

    def _links(self, whole: LinedObject, names: set[str]) -> tuple[Link, ...]:
        links: dict[tuple[str, str], Link] = {}
        for each in self._list(whole, "links"):
            if not isinstance(each, LinedObject):
                self._wrong(
                    whole.line_of["links"], f"{each!r} is no link", 'write {"between": ["a", "b"], "rate": ...}'
                )
            bits_per_s = self._value(each, "rate", parse_rate) if "rate" in each else 0.0
            latency_s = self._value(each, "latency", parse_seconds) if "latency" in each else _LATENCY_S
            price = self._value(each, "price", parse_price) if "price" in each else None
            for start, end in self._ends(each):
                for name in (start, end):
                    if name not in names:
                        self._wrong(
                            each.line,
                            f"no host and no switch is called {name!r}",
                            f"name it, or one of {sorted(names)}",
                        )
                if start == end:
                    self._wrong(each.line, f"the link leads from {start!r} to itself", "name two ends")
                if (start, end) in links:
                    self._wrong(
                        each.line, f"there are two links from {start!r} to {end!r}", "add up their rates in one"
                    )
                links[start, end] = Link(start, end, bits_per_s, latency_s, price)
        return tuple(links.values())

    def _ends(self, each: LinedObject) -> list[tuple[str, str]]:
        if "between" in each:
            self._keys(each, {"between", "rate"}, {"latency", "price", "comment"})
            ends = each["between"]
            if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, str) for end in ends):
                self._wrong(each.line, f"it is between {ends!r}", 'write two names: "between": ["a", "b"]')
            return [(ends[0], ends[1]), (ends[1], ends[0])]
        self._keys(each, {"from", "to", "rate"}, {"latency", "price", "comment"})
        return [(self._name(each["from"], each, "from"), self._name(each["to"], each, "to"))]

    def _check_ways(self, line: int, topology: Topology) -> None:
        """Each host reaches each other one, and not through a third one."""
        switches = set(topology.switches)
        after: dict[str, list[str]] = {}
        for link in topology.links:
            after.setdefault(link.start, []).append(link.end)
        for host in topology.hosts:
            reached, left = {host.name}, [host.name]
            while left:
                for name in after.get(left.pop(), ()):
                    if name not in reached:
                        reached.add(name)
                        left += [name] if name in switches else []
            missing = next((other.name for other in topology.hosts if other.name not in reached), None)
            if missing is not None:
                self._wrong(
                    line, f"no links lead from {host.name!r} to {missing!r}, directly or through switches",
                    "add a link, or remove one of these hosts",
                )  # fmt: skip

    def _value(self, each: LinedObject, key: str, parse: Callable[[str], float]) -> float:
        try:
            value = parse(each[key] if isinstance(each[key], str) else "")
        except InvalidArgument as error:
            accepted = str(error).partition(", but ")[2]
            self._wrong(
                each.line_of[key], f"{key!r} is {each[key]!r}, but {accepted}", "write it as a text with its unit"
            )
        too_much = parse is parse_seconds and value > _MOST_SECONDS
        if too_much or (parse is parse_rate and not 1 <= value < 1e18):
            self._wrong(each.line_of[key], f"{key!r} is {each[key]!r}, which no network has", "look at its unit")
        return value

    def _list(self, whole: LinedObject, key: str) -> list[Any]:
        found = whole.get(key, [])
        if not isinstance(found, list):
            self._wrong(whole.line_of[key], f"{key!r} is {type(found).__name__}", "write a list in [ ]")
        return found

    def _name(self, each: Any, where: LinedObject, key: str) -> str:
        if not isinstance(each, str) or not each.strip() or len(each) > 255:
            self._wrong(where.line_of[key], f"{each!r} is no name", "write the name in quotes")
        return each

    def _keys(self, found: LinedObject, required: set[str], optional: set[str]) -> None:
        for key in found:
            if key not in required | optional:
                known = ", ".join(sorted(required | optional))
                self._wrong(found.line_of[key], f"nothing here is called {key!r}", f"there are: {known}")
        for key in sorted(required - found.keys()):
            self._wrong(found.line, f"{key!r} is missing", f"add it; needed are {', '.join(sorted(required))}")

    def _wrong(self, line: int, what: str, remedy: str) -> NoReturn:
        raise InvalidArgument(f"{self._origin}, line {line}: {what}. Remedy: {remedy}")
