"""Where Lightning learns this process's place from: what ringcore knows of launchers that Lightning does not know."""

from __future__ import annotations

import os
import socket
from typing import Any

import ringcore
from ringcore.adapter import Placement, find_placement, gather_bytes

# Lightning knows ringrun and torchrun (they set the same variables) and srun itself; of mpirun only with mpi4py.
_OURS = ("Open MPI", "MPICH", "Horovod", "Kubernetes")


def _found() -> Placement | None:
    try:
        return find_placement(os.environ)
    except ringcore.InvalidArgument:
        return None


def ranks_started() -> tuple[int, int] | None:
    """The number of ranks that a launcher has started on each host, and that of hosts; None where none says so."""
    placement = _found()
    if placement is None or placement.local_size is None or placement.size % placement.local_size:
        return None
    return placement.local_size, placement.size // placement.local_size


class RingEnvironment:
    """A cluster environment of Lightning for ranks that mpirun and its like have started.

    `lightning` and `pytorch_lightning` each have a class of environments; `environment_for` makes this one of theirs.
    """

    def __init__(self) -> None:
        self._placement: Placement = find_placement(os.environ)
        self._main: tuple[str, int] | None = None

    @staticmethod
    def detect() -> bool:
        """Whether a launcher that Lightning does not know has started this process."""
        placement = _found()
        return placement is not None and placement.source in _OURS and placement.size > 1

    @property
    def creates_processes_externally(self) -> bool:
        """Yes: Lightning starts none."""
        return True

    def _meet(self) -> tuple[str, int]:
        if self._main is None:
            ringcore.init()
            rendezvous = (self._placement.rendezvous or "").partition("tcp:")[2].rpartition(":")[0].strip("[]")
            host = self._placement.master_addr or rendezvous or "127.0.0.1"
            port = self._placement.master_port
            if port is None:  # one that is free at rank 0
                own = str(_free_port()).encode()
                port = int(gather_bytes(own, "ringcore_lightning.port")[0])
            self._main = host, port
        return self._main

    @property
    def main_address(self) -> str:
        """Where rank 0 is."""
        return self._meet()[0]

    @property
    def main_port(self) -> int:
        """A port of rank 0's that is free."""
        return self._meet()[1]

    def world_size(self) -> int:
        """The number of ranks."""
        return self._placement.size

    def set_world_size(self, size: int) -> None:
        """The launcher decides.

        Raises:
            InvalidArgument: It has started another number of ranks than the Trainer was told.
        """
        if size != self._placement.size:
            raise ringcore.InvalidArgument(
                f"{self._placement.source} has started {self._placement.size} ranks, the Trainer was told of {size}; "
                "devices= is the number of ranks of a host, num_nodes= the number of hosts"
            )

    def global_rank(self) -> int:
        """This process's rank."""
        return self._placement.rank

    def set_global_rank(self, rank: int) -> None:
        """The launcher decides."""

    def local_rank(self) -> int:
        """This process's number on its host."""
        if self._placement.local_rank is not None:
            return self._placement.local_rank
        ringcore.init()
        return ringcore.local_rank()

    def node_rank(self) -> int:
        """The number of this host."""
        if self._placement.cross_rank is not None:
            return self._placement.cross_rank
        ringcore.init()
        return ringcore.cross_rank()

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """`set_world_size` checks."""

    def teardown(self) -> None:
        """Nothing to do."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def environment_for(cluster_environment: Any, base: type[Any]) -> Any:
    """The environment that was asked for; ours where only that knows the launcher; else None: Lightning finds one.

    Args:
        cluster_environment: What the user has passed.
        base: Lightning's class of cluster environments.
    """
    if cluster_environment is None and RingEnvironment.detect():
        return type("RingEnvironment", (RingEnvironment, base), {})()
    return cluster_environment
