"""What rank 0 tells the others of the network, so that all plan for the same one."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringcore._errors import InvalidArgument

if TYPE_CHECKING:
    from ringcore.environment.settings import Settings
    from ringcore.network import Topology
    from ringcore.network.cables import Network

_MOST_BYTES = 1 << 22


def announce_network(rank: int, settings: Settings) -> dict[str, Any]:
    """What a rank's contact says of the network: rank 0 has the file, or says on behalf of all why it is of no use."""
    if rank != 0 or settings.topology_file is None:
        return {}
    from ringcore.network import read_file

    if settings.elastic:
        return {
            "topology_wrong": "RINGCORE_TOPOLOGY_FILE is set in an elastic job, whose hosts come and go. Remedy: leave "
            "it out; what transfers show of the network is used"
        }
    try:
        text = read_file(settings.topology_file).to_json()
    except InvalidArgument as error:
        return {"topology_wrong": str(error)}
    return {"topology": base64.b64encode(zlib.compress(text.encode())).decode()}


def told_topology(contacts: Sequence[Mapping[str, Any]]) -> Topology | None:
    """What rank 0 has told; None: nothing.

    Raises:
        InvalidArgument: It has a file that is of no use. On every rank.
    """
    if "topology_wrong" in contacts[0]:
        raise InvalidArgument(contacts[0]["topology_wrong"])
    if "topology" not in contacts[0]:
        return None
    from ringcore.network import read

    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b64decode(contacts[0]["topology"], validate=True), _MOST_BYTES).decode()
    except (ValueError, zlib.error) as error:
        raise InvalidArgument(f"what rank 0 tells of the network cannot be read: {error}") from None
    return read(text, "the topology of rank 0")


@dataclass(frozen=True)
class ToldNetwork:
    """What rank 0 has told, for the hosts of this job.

    Attributes:
        topology: As it was told.
        host_names: By rank, and the servers behind them: what `topology` calls its host.
        network: Between the groups of ranks that share memory, by their numbers.
    """

    topology: Topology
    host_names: tuple[str, ...]
    network: Network


def network_between(topology: Topology, contacts: Sequence[Mapping[str, Any]], host_of: Sequence[int]) -> ToldNetwork:
    """What lies between the groups of ranks that share memory.

    Raises:
        InvalidArgument: The topology lacks a host. On every rank.
    """
    from ringcore.network.cables import Place, names_of, network_of

    places = []
    for host in range(max(host_of) + 1):
        ranks = tuple(rank for rank, number in enumerate(host_of) if number == host)
        contact = contacts[ranks[0]]
        addresses = tuple(address.rpartition(" ")[2].partition("/")[0] for address in contact["addresses"])
        places.append(Place(contact["host"], addresses, ranks))
    names = names_of(topology, places)
    return ToldNetwork(topology, tuple(names[host] for host in host_of), network_of(topology, places))
