"""Where the nodes of a plan stand, and what lies between their hosts, for predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringcore._errors import InvalidArgument
from ringcore.network import Topology
from ringcore.network.cables import Network, Place, network_of


@dataclass(frozen=True)
class NodesOnHosts:
    """Nodes on hosts.

    Attributes:
        host_of: By node, the ranks and those who serve behind them: the number of its host, from 0 on.
        network: Between these hosts.
        names: By node: what a topology calls its host; empty without one.
    """

    host_of: tuple[int, ...]
    network: Network
    names: tuple[str, ...] = ()


def spread(ranks: int, serving: int, hosts: int | None) -> list[int]:
    """Hosts of nodes, by number.

    Args:
        ranks: Stand on `hosts`, the first ones of which have one more where not all can have as many.
        serving: Stand behind them, each on a host of its own.
        hosts: `None`: one for each rank.

    Raises:
        InvalidArgument: There are more hosts than ranks, or none.
    """
    hosts = ranks if hosts is None else hosts
    if not 1 <= hosts <= ranks:
        raise InvalidArgument(
            f"{ranks} ranks cannot stand on {hosts} hosts. Remedy: name at least one rank for each host."
        )
    share, more = divmod(ranks, hosts)
    numbers = [host for host in range(hosts) for _ in range(share + (host < more))]
    return [*numbers, *range(hosts, hosts + serving)]


def place(
    ranks: int,
    serving: int,
    even: Network,
    *,
    hosts: int | None = None,
    topology: Topology | None = None,
    host_names: Sequence[str] = (),
) -> NodesOnHosts:
    """Nodes on hosts, as `spread` says; or on those of a topology.

    Args:
        ranks: How many.
        serving: How many nodes behind them.
        even: What lies between hosts without a topology.
        hosts: On how many the ranks stand; `None`: one each, as far as the topology has them.
        topology: Nodes stand on its hosts, in their order; those who serve from the first one on where it has no more.
        host_names: By node: its host in the topology, instead.

    Raises:
        InvalidArgument: There are no such hosts, or not as many names as nodes.
    """
    if topology is None:
        if host_names:
            raise InvalidArgument("names of hosts were given, and no topology that has them")
        return NodesOnHosts(tuple(spread(ranks, serving, hosts)), even)
    known = len(topology.hosts)
    if host_names and len(host_names) != ranks + serving:
        raise InvalidArgument(f"the plan has {ranks + serving} nodes, and {len(host_names)} names of hosts were given")
    if not host_names:
        hosts = min(ranks, known) if hosts is None else hosts
        if hosts > known:
            raise InvalidArgument(f"the ranks cannot stand on {hosts} hosts: the topology has {known}")
        host_names = [topology.hosts[number % known].name for number in spread(ranks, serving, hosts)]
    # A dict keeps the order: hosts are numbered as they come.
    numbers = {name: number for number, name in enumerate(dict.fromkeys(host_names))}
    host_of = tuple(numbers[name] for name in host_names)
    places = [
        Place(name, (), tuple(node for node, host in enumerate(host_of) if host == number))
        for name, number in numbers.items()
    ]
    return NodesOnHosts(host_of, network_of(topology, places), tuple(host_names))
