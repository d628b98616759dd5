"""Measures what lies between the hosts of a job."""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

from ringcore._errors import BootstrapError, InvalidArgument, ResourceError, RingcoreError
from ringcore.bootstrap.auth import receive_exactly, send_all
from ringcore.bootstrap.interfaces import Address, addresses, speed_of
from ringcore.bootstrap.sockets import dial, listen_at
from ringcore.job.agreement import gather_bytes, meet
from ringcore.job.state import Context, context
from ringcore.job.streams import Streams
from ringcore.network import Host, Interface, Topology
from ringcore.network.findings import Findings, Matrix, derive, doubtful_pairs, rounds_of_pairs, unclear_ports

_TOKEN_BYTES = 32
_NUMBER = struct.Struct("<I")
_CONNECT_S, _HELLO_S = 30.0, 5.0
_TURNS = 2  # whoever had no processor in one may have one in the next: the larger rate counts
# So many pairs of a host are looked at alone at most.
_ALONE_EACH = 8

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Measured:
    """What `measure` has found.

    Attributes:
        topology: What follows from it.
        findings: What was measured; None on one host.
    """

    topology: Topology
    findings: Findings | None


def topology(*, seconds: float = 0.05) -> Topology:
    """Measure what lies between the hosts of this job. Collective: every rank calls it, between operations.

    One rank of each host measures, the others wait: rates of all directed pairs in rounds of disjoint pairs, of pairs
    that were slow there also alone, and of each host to and from all others at once. That takes some 4 rounds a host.

    Args:
        seconds: That a round takes, or eight round trips where these are longer.

    Returns:
        The same on all ranks, with which of them share memory. `save` writes it for `ringrun --topology-file`.

    Raises:
        InvalidArgument: MPI moves what goes between the hosts, or `seconds` is not positive.
        ResourceError: Hosts cannot connect with each other, or broke off. On every rank.
    """
    return measure(seconds=seconds).topology


def measure(*, seconds: float) -> Measured:
    """See `topology`."""
    if not seconds > 0:
        raise InvalidArgument(f"a round was to take {seconds} s; name a positive number of seconds, such as 0.05")
    current = context()
    call = current.next_name("topology")
    return _Survey(current, call, seconds).measure()


def _key(current: Context) -> str:
    """Host name and address of this rank; empty where it has no connections over TCP of its own."""
    return "" if current.endpoint is None else f"{socket.gethostname()} {current.endpoint.ip}"


class _Survey:
    def __init__(self, current: Context, call: str, seconds: float) -> None:
        self._current = current
        self._call = call
        self._seconds = seconds
        self._steps = 0
        self._failure: RingcoreError | None = None
        self._streams: Streams | None = None
        self._own = -1  # number of the host that this rank measures for
        self._interfaces: tuple[tuple[Interface, ...], ...] = ()
        self._ranks: tuple[tuple[tuple[int, ...], ...], ...] = ()
        self._count = 0

    def measure(self) -> Measured:
        if max(self._current.host_of) == 0:
            return self._one_host()
        keys = [part.decode() for part in self._gather(_key(self._current).encode())]
        if not all(keys):
            raise InvalidArgument(
                f"the links between hosts are measured over TCP, and rank {keys.index('')} has none of its own. "
                "Remedy: set RINGCORE_TRANSPORT=auto, and measure before ranks join"
            )
        leaders = [keys.index(each) for each in dict.fromkeys(keys)]
        self._count = len(leaders)
        if self._count == 1:
            return self._one_host()
        self._ranks = tuple(self._sharing([rank for rank, key in enumerate(keys) if key == keys[at]]) for at in leaders)
        self._own = leaders.index(self._current.rank) if self._current.rank in leaders else -1
        try:
            self._connect(leaders)
            findings = self._find(self._names([keys[leader] for leader in leaders]))
        finally:
            if self._streams is not None:
                self._streams.close()
        return Measured(derive(findings), findings)

    def _one_host(self) -> Measured:
        ranks = self._sharing(range(len(self._current.host_of)))
        return Measured(Topology((Host(socket.gethostname(), ranks=ranks),), (), ()), None)

    def _sharing(self, ranks: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Groups of those ranks that share memory."""
        groups: dict[int, list[int]] = {}
        for rank in ranks:
            groups.setdefault(self._current.host_of[rank], []).append(rank)
        return tuple(map(tuple, groups.values()))

    def _gather(self, data: bytes) -> list[bytes]:
        self._steps += 1
        return gather_bytes(data, f"{self._call}.{self._steps}")

    def _names(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Host names, or addresses where two hosts are called the same."""
        names = [key.partition(" ")[0] for key in keys]
        return tuple(
            name if names.count(name) == 1 else key.rpartition(" ")[2] for name, key in zip(names, keys, strict=True)
        )

    def _connect(self, leaders: Sequence[int]) -> None:
        """Each host with each other one, both ways; a token that only ranks of this job know lets them in."""
        token, listeners = os.urandom(_TOKEN_BYTES), []
        if self._own >= 0:
            self._attempt(lambda: listeners.append(self._listen()))
        where = {}
        if listeners:
            ip, port, *_ = listeners[0].getsockname()
            where = {"host": self._own, "ip": ip, "port": port, "token": token.hex(), "interfaces": _interfaces(ip)}
        told = self._agree_on_failure(where or None)
        self._interfaces = tuple(tuple(Interface(*one) for one in each["interfaces"]) for each in told)
        if listeners:
            with listeners[0] as listener:
                self._attempt(lambda: self._join(told, listener, token))
        self._agree_on_failure()

    def _listen(self) -> socket.socket:
        own = self._current.endpoint
        if own is None:
            raise ResourceError("it listens nowhere")
        return listen_at(Address(own.interface, own.ip, own.prefix))

    def _join(self, where: Sequence[dict[str, Any]], listener: socket.socket, token: bytes) -> None:
        deadline = time.monotonic() + _CONNECT_S
        out: dict[int, socket.socket] = {}
        into: dict[int, socket.socket] = {}
        self._streams = Streams(out, into)
        for at in where:
            number = at["host"]
            if number != self._own:
                ip = f"[{at['ip']}]" if ":" in at["ip"] else at["ip"]
                out[number] = dial(f"tcp:{ip}:{at['port']}", deadline)
                send_all(out[number], bytes.fromhex(at["token"]) + _NUMBER.pack(self._own), deadline)
        while len(into) < len(out):
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            connection, _ = listener.accept()
            number = _host_of(connection, token)
            if number in out and number not in into:
                into[number] = connection
            else:
                connection.close()
        self._streams.prepare()

    def _attempt(self, work: Callable[[], None]) -> None:
        """What fails here is told to all when they meet: until then the others only wait."""
        if self._failure is not None:
            return
        try:
            work()
        except (OSError, RingcoreError) as error:
            self._failure = ResourceError(f"rank {self._current.rank} cannot measure the network: {error}")

    def _agree_on_failure(self, own: object = None) -> list[Any]:
        """Everybody's findings; or everybody raises what has failed somewhere."""
        why = None if self._failure is None else str(self._failure)
        parts = [json.loads(part) for part in self._gather(json.dumps({"why": why, "found": own}).encode())]
        for part in parts:
            if part["why"] is not None:
                raise ResourceError(part["why"])
        return [part["found"] for part in parts if part["found"] is not None]

    def _find(self, names: tuple[str, ...]) -> Findings:
        hosts = range(self._count)
        fans = [[(host, other) for other in hosts if other != host] for host in hosts]
        fans += [[(other, host) for host, other in fan] for fan in fans]
        own: dict[str, Any] = {"loaded": self._rounds(rounds_of_pairs(self._count), turns=_TURNS)}
        own["slow"] = self._latencies(least=False)
        if self._streams is not None:
            self._streams.shorten_queues()
        own["fans"] = self._rounds(fans)
        own["quick"] = self._latencies(least=True)
        told = self._exchange(own)
        findings = Findings(
            names,
            send=[told[host]["fans"][host][0]["sent"] for host in hosts],
            receive=[_received(told[host]["fans"][self._count + host][0]) for host in hosts],
            loaded=_in_company(told, "loaded"),
            alone=_at_most(told, "loaded"),
            latency_s=[report["quick"] for report in told],
            loaded_latency_s=[report["slow"] for report in told],
            interfaces=self._interfaces,
            ranks=self._ranks,
        )
        self._again(findings, fans)
        for host in hosts:  # A port lets through what one pair had, whatever disturbed the others.
            findings.send[host] = max(findings.send[host], *findings.loaded[host])
            findings.receive[host] = max(findings.receive[host], *(each[host] for each in findings.loaded))
        if self._streams is not None:
            self._streams.lengthen_queues()
        doubtful = doubtful_pairs(findings)[: _ALONE_EACH * self._count]
        told = self._exchange({"alone": self._rounds([[pair] for pair in doubtful], turns=_TURNS)})
        alone = _at_most(told, "alone")
        for i, j in doubtful:
            findings.alone[i][j] = max(findings.alone[i][j], alone[i][j])
        for i, j in findings.pairs:
            if findings.alone[i][j] < 1:
                raise ResourceError(
                    f"in {self._seconds:g} s too little came from {names[i]} to {names[j]} to tell the rate. "
                    "Remedy: let a round take longer, as in --seconds 1"
                )
        return findings

    def _again(self, findings: Findings, fans: Sequence[Pairs]) -> None:
        """Measure once more what hosts send and receive in all where it fits neither one link nor several."""
        away, here = unclear_ports(findings)
        numbers = [*away, *(self._count + host for host in here)]
        told = self._exchange({"fans": self._rounds([fans[number] for number in numbers])})
        for at, host in enumerate(away):
            findings.send[host] = max(findings.send[host], told[host]["fans"][at][0]["sent"])
        for at, host in enumerate(here, len(away)):
            findings.receive[host] = max(findings.receive[host], _received(told[host]["fans"][at][0]))

    def _rounds(self, rounds: Sequence[Pairs], *, turns: int = 1) -> list[list[dict[str, Any]]]:
        """The `Rates` of this host in each turn of each round; others only meet."""
        found: list[list[dict[str, Any]]] = []
        for pairs in rounds:
            found.append([{"sent": 0.0, "received": {}} for _ in range(turns)])
            for turn in found[-1]:
                self._steps += 1
                meet(f"{self._call}.{self._steps}")
                self._attempt(partial(self._run, pairs, turn))
        return found

    def _run(self, pairs: Pairs, turn: dict[str, Any]) -> None:
        if self._streams is None:
            return
        targets = [end for start, end in pairs if start == self._own]
        sources = [start for start, end in pairs if end == self._own]
        turn.update(asdict(self._streams.run(targets, sources, self._seconds)))

    def _latencies(self, *, least: bool) -> list[float]:
        if self._streams is None:
            return []
        streams = self._streams
        return [0.0 if host == self._own else streams.latency_s(host, least=least) for host in range(self._count)]

    def _exchange(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """What the hosts have found, by their numbers."""
        found = self._agree_on_failure({"host": self._own, **own} if self._own >= 0 else None)
        return sorted(found, key=itemgetter("host"))


def _interfaces(measured: str) -> list[tuple[str, str, float | None]]:
    """Those of this host that lead to others: name, address, and what the card says; first the one that is measured.

    They are for whoever reads them: where the system does not tell them, there are none.
    """
    try:
        here = addresses()
    except BootstrapError:
        return []
    found = [
        (each.interface, each.ip, speed_of(each.interface))
        for each in here
        if not each.is_link_local and not ipaddress.ip_address(each.ip).is_loopback
    ]
    return sorted(found, key=lambda one: one[1] != measured)


def _host_of(connection: socket.socket, token: bytes) -> int:
    """Who has connected; -1: a stranger, who does not know the token."""
    try:
        hello = receive_exactly(connection, _TOKEN_BYTES + _NUMBER.size, time.monotonic() + _HELLO_S)
    except (OSError, RingcoreError):
        return -1
    number: int = _NUMBER.unpack(hello[_TOKEN_BYTES:])[0]
    return number if hmac.compare_digest(hello[:_TOKEN_BYTES], token) else -1


def _received(turn: dict[str, Any]) -> float:
    """By one host, from all."""
    return float(sum(turn["received"].values()))


def _in_company(told: list[dict[str, Any]], what: str) -> Matrix:
    """By source and target, of the better turn of each round: what went at the same time may be added up."""
    found = [[0.0] * len(told) for _ in told]
    for number, turns in enumerate(told[0][what]):
        sums = [sum(_received(report[what][number][turn]) for report in told) for turn in range(len(turns))]
        best = sums.index(max(sums))
        for target, report in enumerate(told):
            for source, rate in report[what][number][best]["received"].items():
                found[int(source)][target] = rate
    return found


def _at_most(told: list[dict[str, Any]], what: str) -> Matrix:
    """By source and target, of the turn in which each pair had most."""
    found = [[0.0] * len(told) for _ in told]
    for target, report in enumerate(told):
        for turn in chain.from_iterable(report[what]):
            for source, rate in turn["received"].items():
                found[int(source)][target] = max(found[int(source)][target], rate)
    return found
