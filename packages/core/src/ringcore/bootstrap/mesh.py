"""From a placement to connected ranks: they meet, connect, and agree on who shares memory with whom.

Among many, a rank connects with those only that it needs from the start, and with others when it needs them.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringcore import _native
from ringcore._errors import BootstrapError
from ringcore._version import __version__
from ringcore.bootstrap.aggregation import Aggregation, aggregation_of, announce_switch, check_switch
from ringcore.bootstrap.auth import KEY_BYTES, Key, key_of_job
from ringcore.bootstrap.connector import Connector, PeerConnection
from ringcore.bootstrap.encryption import announce_encryption, check_carriers, check_encryption
from ringcore.bootstrap.groups import Groups, own_domain, told_by
from ringcore.bootstrap.interfaces import own_address
from ringcore.bootstrap.keys import rendezvous_of
from ringcore.bootstrap.meeting import meet
from ringcore.bootstrap.paths import Endpoint, announce, check_all_listen, listen
from ringcore.bootstrap.sockets import reserve_descriptors
from ringcore.bootstrap.told_network import ToldNetwork, announce_network, network_between, told_topology
from ringcore.environment.hidden import hide, wipe

if TYPE_CHECKING:
    from ringcore.environment.placement import Placement
    from ringcore.environment.settings import Settings


# A server is there before the ranks, and waits for them as long as its launcher lets it.
_UNTIL_RANKS_COME_S = 1e6


@dataclass
class Mesh:
    """This rank's place among the connected ranks.

    Attributes:
        size: Of the ranks alone.
        host_of: Numbers the groups of processes that share memory, for each rank and server.
        local_ranks: Of each rank, as its launcher says, or by `host_of`.
        connector: Connects further lanes, where there are peers over TCP; close it.
        failure: Some ranks have not come up to the deadline; those that are connected are to be told.
        told: Of the network, by rank 0; None: nothing.
        endpoint: Where this rank listens for others over TCP; the first of these.
    """

    rank: int
    size: int
    epoch: int
    segment_fd: int | None
    peers: list[PeerConnection]
    host_of: list[int]
    local_ranks: list[int]
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    connector: Connector | None = None
    failure: BootstrapError | None = None
    told: ToldNetwork | None = None
    aggregation: Aggregation | None = None
    endpoint: Endpoint | None = None


def _check_alike(contacts: list[dict[str, Any]]) -> None:
    check_encryption(contacts)
    check_switch(contacts)


def connect(
    placement: Placement,
    settings: Settings,
    *,
    create_segment: Callable[[], int] | None,
    world: _native.MpiWorld | None = None,
) -> Mesh:
    """Meet the other ranks and connect to those that this one needs from the start.

    Args:
        placement: This process's rank and the job's size.
        settings: `transport`, `network`, `network_interfaces`, `connections`, `encryption`, `start_timeout_s`,
            `topology_file`, `rendezvous`, `key_fd`, `key_file`, `job_id` are used.
        create_segment: Makes this rank's memory file and returns its descriptor; None: no shared memory.
        world: The ranks meet through this MPI instead of a rendezvous, and it connects those that share no memory.

    Raises:
        BootstrapError: The ranks did not find each other in time, or cannot reach each other.
    """
    deadline = _deadline(settings, patient=placement.serves)
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as sockets:
        over_mpi = world is not None and settings.transport != "tcp"
        check_carriers(settings.encryption, over_mpi=over_mpi)
        key: Key | None
        if world is None:
            address, key = stack.enter_context(rendezvous_of(placement, settings))
        else:
            where = own_address()
            address, key = f"tcp:[{where}]:0" if ":" in where else f"tcp:{where}:0", None
        segment_fd = create_segment() if create_segment is not None and settings.transport != "tcp" else None
        listeners, endpoints = ([], []) if over_mpi else listen(settings, address)
        for listener in listeners:
            sockets.callback(listener.close)
        local, name = _listen_on_this_host()
        sockets.callback(local.close)
        contact = _contact(placement, settings, endpoints, unix=name if segment_fd is not None else None)
        lasting = key if placement.epoch is not None else None  # also whoever joins later has it
        if world is None:
            epoch, secret, contacts = meet(address, key, contact, deadline)
            key = key_of_job(secret, settings.job_id or "")
        else:
            epoch, key, contacts = _meet_through(world, contact, deadline)
        _check_alike(contacts)
        topology, aggregation = told_topology(contacts), aggregation_of(settings, lasting or key, epoch)
        if not over_mpi:
            check_all_listen(contacts, settings)
        connector = Connector(
            placement.rank, epoch, key, contacts, segment_fd, [*listeners, local], settings,
            min(deadline, _deadline(settings)), over_mpi,
        )  # fmt: skip
        sockets.pop_all()  # They are the connector's now.
        failure = None
        try:
            if placement.size > _native.DIRECT_MEMBERS and not placement.servers and world is None:
                host_of = told_by(contacts)
                failure = _connect_some(connector, host_of)
            else:
                host_of = _connect_all(connector, world if over_mpi else None)
            told = None if topology is None else network_between(topology, contacts, host_of)
        except BaseException:
            connector.close()
            raise
        mesh = _mesh(placement, epoch, segment_fd, connector.peers, host_of, [c["local_rank"] for c in contacts])
        mesh.failure, mesh.told, mesh.aggregation, mesh.endpoint = (
            failure,
            told,
            aggregation,
            next(iter(endpoints), None),
        )
        if any(peer.transport == "tcp" for peer in mesh.peers):
            connector.stop_listening(local)
            mesh.connector = connector
        else:
            connector.finish()
    return mesh


def _listen_on_this_host() -> tuple[socket.socket, str]:
    """Where the ranks of this host hand each other their memory, and its name."""
    name = f"ringcore-{secrets.token_hex(16)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")  # abstract: no file, gone with the process
    listener.listen(1024)
    return listener, name


def _contact(
    placement: Placement, settings: Settings, endpoints: list[Endpoint], *, unix: str | None
) -> dict[str, Any]:
    """What the others hear of this rank when they meet."""
    return {
        "rank": placement.rank,
        "size": placement.processes,
        "serves": placement.serves,
        "local_rank": placement.local_rank,
        "job": settings.job_id,
        "version": __version__,
        "start_timeout_s": settings.start_timeout_s,
        "unix": unix,
        "domain": own_domain(),
        **({} if placement.epoch is None else {"epoch": placement.epoch}),
        **announce(endpoints, settings),
        **announce_encryption(settings, endpoints),
        **announce_network(placement.rank, settings),
        **announce_switch(settings),
    }


def _deadline(settings: Settings, *, patient: bool = False) -> float:
    return time.monotonic() + (_UNTIL_RANKS_COME_S if patient else settings.start_timeout_s)


def _connect_all(connector: Connector, world: _native.MpiWorld | None) -> list[int]:
    """Each with each; returns the groups that share memory, for each rank."""
    size = len(connector.contacts)
    reserve_descriptors(connector.most_connections() * (size - 1), f"a job of {size} ranks")
    connector.dial(range(size))
    if world is not None:
        _leave_to(world, connector, size)
    connector.serve_until_connected(range(size))
    groups = Groups(connector.rank, connector.peers, connector.deadline).agree(size, world)
    if connector.settings.elastic:  # Whoever does not answer any more is a lost rank there, and no reason to end.
        connector.connect_late()
    return groups


def _connect_some(connector: Connector, host_of: list[int]) -> BootstrapError | None:
    """With whom the engine wants to be connected from the start; the others are known by their contacts.

    Returns:
        Who has not come in time: the others are still to hear of it.
    """
    size = len(host_of)
    others = _native.connected_at_start(host_of, connector.rank)
    reserve_descriptors(connector.most_connections() * len(others), f"a rank of a job of {size}")
    failure = None
    connector.dial(others, sharing=[peer for peer in others if host_of[peer] == host_of[connector.rank]])
    try:
        connector.serve_until_connected(others)
    except BootstrapError as error:
        failure = error
    connector.connect_late()
    return failure


def _leave_to(world: _native.MpiWorld, connector: Connector, size: int) -> None:
    """Leave to MPI who does not share memory: each rank tells with which higher ones it does."""
    rank = connector.rank
    connector.serve_until_connected(range(rank + 1, size))
    higher = [peer for peer in connector.peers if peer > rank]
    with connector.serving():  # Lower ranks may only be dialling.
        told = world.exchange(json.dumps(higher).encode(), max(0.05, connector.deadline - time.monotonic()))
    theirs = [json.loads(data) for data in told]
    for peer in range(size):
        shared = rank in theirs[peer] if peer < rank else peer in higher
        if peer != rank and not shared:
            connector.peers[peer] = PeerConnection(peer, "mpi", [])


def _meet_through(
    world: _native.MpiWorld, contact: dict[str, Any], deadline: float
) -> tuple[int, Key, list[dict[str, Any]]]:
    """What a rendezvous tells: the epoch, the key and where every rank is. Rank 0's epoch and key are used."""
    own = secrets.token_bytes(KEY_BYTES) + json.dumps({**contact, "epoch": secrets.randbits(31)}).encode()
    told = world.exchange(own, deadline - time.monotonic())
    contacts = [json.loads(data[KEY_BYTES:]) for data in told]
    key = hide(told[0][:KEY_BYTES])
    for data in (own, *told):
        wipe(data)
    for rank, other in enumerate(contacts):
        if other["version"] != __version__:
            raise BootstrapError(
                f"rank {rank} has ringcore {other['version']}, this rank {__version__}: install the same version "
                "everywhere"
            )
    return contacts[0]["epoch"], key, contacts


def _mesh(
    placement: Placement,
    epoch: int,
    segment_fd: int | None,
    peers: dict[int, PeerConnection],
    host_of: list[int],
    told: list[int | None],
) -> Mesh:
    rank, ranks = placement.rank, host_of[: placement.size]
    # What the launcher told comes first: ranks that reach each other over TCP only may still be of one host.
    local_ranks = [ranks[:r].count(host_of[r]) if local is None else local for r, local in enumerate(told)]
    local_rank = local_ranks[rank]
    local_size = placement.local_size if placement.local_size is not None else ranks.count(host_of[rank])
    cross_rank, cross_size = placement.cross_rank, placement.cross_size
    if cross_rank is None or cross_size is None:
        cross_rank, cross_size = local_ranks[:rank].count(local_rank), local_ranks[: placement.size].count(local_rank)
    ordered = [peers.get(r) or PeerConnection(r, "tcp", []) for r in range(placement.processes) if r != rank]
    return Mesh(
        rank,
        placement.size,
        epoch,
        segment_fd,
        ordered,
        host_of,
        local_ranks,
        local_rank,
        local_size,
        cross_rank,
        cross_size,
    )
