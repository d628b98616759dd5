"""Over which pairs of addresses two ranks connect: found by both from what each has announced."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringcore._errors import BootstrapError
from ringcore.bootstrap.interfaces import Address, addresses, choose, connections_for, share_network, towards
from ringcore.bootstrap.sockets import allows_bbr, listen_at

if TYPE_CHECKING:
    from ringcore.environment.settings import Settings

# In an error, hosts beyond these are only counted.
_SHOWN_HOSTS = 8
# A packet that is lost halves what a connection carries, and the way back takes as many round trips as there are
# packets under way: on a long way one connection carries little, of many a few suffer at a time. BBR does not mind. Of
# two connections one goes on while the other looks how quick the way is; many take it from each other. But the 3 MB
# that Linux lets be under way over one are 1.2 Gbit/s where a round trip takes 20 ms.
_SECONDS_A_CONNECTION = 0.005  # of a round trip
_SECONDS_A_CONNECTION_WITH_BBR = 0.02
_MOST_BY_DISTANCE = 16


@dataclass(frozen=True)
class Endpoint:
    """Where a rank listens.

    Attributes:
        interface: Of the listening host, and of no meaning elsewhere.
        ip: Its address.
        prefix: Bits of its network.
        port: Of the listening socket.
        connections: How many connections it takes to fill this link.
        round_trip_s: To the rendezvous and back, where the number of connections may depend on it; else 0.
        bbr: Its system lets a connection have this congestion control, which ringcore takes over a long way.
    """

    interface: str
    ip: str
    prefix: int
    port: int
    connections: int
    round_trip_s: float = 0.0
    bbr: bool = False


@dataclass(frozen=True)
class Path:
    """A pair of addresses, and the connections between them."""

    lower: Endpoint
    higher: Endpoint
    connections: int


def listen(settings: Settings, rendezvous: str) -> tuple[list[socket.socket], list[Endpoint]]:
    """Listen on every chosen address; without a choice, on that towards the rendezvous, which is loopback on one host.

    Returns:
        The sockets, and where they listen: nowhere, if this host has none of the chosen addresses.

    Raises:
        BootstrapError: There is no route to the rendezvous, or an address cannot be listened on.
    """
    if settings.network or settings.network_interfaces:
        chosen = choose(settings.network, settings.network_interfaces)
    elif rendezvous.startswith("unix:"):
        chosen = [Address("lo", "127.0.0.1", 8)]
    else:
        chosen = [towards(rendezvous.partition(":")[2].rpartition(":")[0].strip("[]"))]
    sockets: list[socket.socket] = []
    endpoints = []
    try:
        for address in chosen:
            sockets.append(listen_at(address))
            port = int(sockets[-1].getsockname()[1])
            wanted = settings.connections or connections_for(address)
            endpoints.append(Endpoint(address.interface, address.ip, address.prefix, port, wanted))
    except BaseException:
        for listener in sockets:
            listener.close()
        raise
    return sockets, endpoints


def announce(endpoints: Sequence[Endpoint], settings: Settings) -> dict[str, Any]:
    """What a rank's contact says about its host's network."""
    return {
        # Found out when the rendezvous is reached.
        **({} if settings.connections else {"round_trip_s": 0.0, "bbr": allows_bbr()}),
        "host": socket.gethostname(),
        "addresses": [str(address) for address in addresses() if address.interface != "lo"],
        "tcp": [[e.interface, e.ip, e.prefix, e.port, e.connections] for e in endpoints],
    }


def endpoints_of(contact: Mapping[str, Any]) -> list[Endpoint]:
    """Where the rank of a contact listens."""
    round_trip_s, bbr = contact.get("round_trip_s", 0.0), contact.get("bbr", False)
    return [
        Endpoint(interface, ip, prefix, port, connections, round_trip_s, bbr)
        for interface, ip, prefix, port, connections in contact["tcp"]
    ]


def connections_between(a: Endpoint, b: Endpoint) -> int:
    """How many connections it takes to fill the way between two addresses.

    How long it is, is not known before they connect. The longer way to the rendezvous stands for it, except inside a
    network: there is no long way in it.
    """
    round_trip_s = max(a.round_trip_s, b.round_trip_s)
    by_distance = int(round_trip_s / _SECONDS_A_CONNECTION)
    if by_distance > 1 and share_network((a.ip, a.prefix), (b.ip, b.prefix)):
        by_distance = 1
    if by_distance > 1 and a.bbr and b.bbr:
        by_distance = max(2, int(round_trip_s / _SECONDS_A_CONNECTION_WITH_BBR))
    return max(a.connections, b.connections, min(by_distance, _MOST_BY_DISTANCE))


def check_all_listen(contacts: Sequence[Mapping[str, Any]], settings: Settings) -> None:
    """On every rank alike.

    Raises:
        BootstrapError: A host has no address in the chosen networks.
    """
    without = [contact["rank"] for contact in contacts if not contact["tcp"]]
    if without:
        wanted = ", ".join([*settings.network, *settings.network_interfaces])
        hosts = sorted({contacts[rank]["host"] for rank in without})
        raise BootstrapError(
            f"{wanted or 'the chosen network'} is on no interface of {', '.join(hosts)} (ranks {without}); choose a "
            f"network that all hosts are on with --network (RINGCORE_NETWORK). {describe_hosts(contacts)}"
        )


def describe_hosts(contacts: Iterable[Mapping[str, Any]]) -> str:
    """The addresses of each host."""
    hosts = {
        f"{contact['host']} has {', '.join(contact['addresses']) or 'no address besides loopback'}": None
        for contact in contacts
    }
    more = f"; and {len(hosts) - _SHOWN_HOSTS} more hosts" if len(hosts) > _SHOWN_HOSTS else ""
    return "; ".join(list(hosts)[:_SHOWN_HOSTS]) + more


def paths_between(lower: Sequence[Endpoint], higher: Sequence[Endpoint]) -> list[Path]:
    """The pairs of addresses over which two ranks connect; the same for both of them.

    Addresses of one network belong together, whatever the interfaces are called. Where hosts have none in common, they
    are routed: the first goes with the first of the same family, and so on.

    Returns:
        Each address occurs once at most. Empty where no two are of one family.
    """
    paths = _pair(lower, higher, lambda a, b: share_network((a.ip, a.prefix), (b.ip, b.prefix)))
    return paths or _pair(lower, higher, lambda a, b: (":" in a.ip) == (":" in b.ip))


def _pair(lower: Sequence[Endpoint], higher: Sequence[Endpoint], fits: Any) -> list[Path]:
    free = list(higher)
    paths = []
    for a in lower:
        b = next((candidate for candidate in free if fits(a, candidate)), None)
        if b is not None:
            free.remove(b)
            paths.append(Path(a, b, connections_between(a, b)))
    return paths
