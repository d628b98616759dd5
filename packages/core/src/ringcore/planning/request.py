"""What a generator is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringcore.planning.plan import Plan

if TYPE_CHECKING:
    from ringcore.network import Topology


@dataclass(frozen=True)
class Request:
    """What a plan is wanted for.

    Attributes:
        collective: "allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter" or
            "alltoall".
        nbytes: So many, about: a plan counts chunks, and serves neighbouring sizes as well.
        host_of: By rank: a number of the host that it is on.
        root: Of a broadcast, reduce, gather or scatter.
        topology: What lies between the hosts, where the job was told it (`ringrun --topology-file`); `None`: it was
            not. It may have hosts that the job does not.
        host_names: By rank: what `topology` calls its host; empty without one.
        server_hosts: By server (`ringrun --servers`): a number of the host that it is on.
    """

    collective: str
    nbytes: int
    host_of: tuple[int, ...] = field(default=(0, 0))
    root: int = 0
    topology: Topology | None = None
    host_names: tuple[str, ...] = ()
    server_hosts: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.host_of)

    @property
    def servers(self) -> range:
        """The nodes that may serve, behind the ranks: a plan has as many of them as it needs, from the first one on."""
        return range(self.ranks, self.ranks + len(self.server_hosts))

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host, in the order of the hosts' numbers."""
        numbers = sorted(set(self.host_of))
        return tuple(tuple(rank for rank, host in enumerate(self.host_of) if host == number) for number in numbers)


# The plan for a request; `None` where it has none to offer.
Generator = Callable[[Request], Plan | None]
