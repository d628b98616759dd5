"""Connects every rank with every other: through shared memory where that works, else by TCP or MPI.

Whether two ranks share memory is found out by trying: the lower rank dials the other's Unix socket, both prove the key,
and they pass each other the descriptors of their memory files. Names of hosts play no part.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringcore._errors import BootstrapError
from ringcore._version import __version__
from ringcore.bootstrap.acceptor import Acceptor
from ringcore.bootstrap.auth import (
    KEY_BYTES,
    MESH,
    ConnectionClosedError,
    Hello,
    TurnedAwayError,
    authenticate,
    key_of_job,
    receive_exactly,
    send_all,
    until_let_in,
)
from ringcore.bootstrap.encryption import announce_encryption, check_carriers, check_encryption, is_encrypted
from ringcore.bootstrap.interfaces import own_address, sockaddr
from ringcore.bootstrap.keys import rendezvous_of
from ringcore.bootstrap.meeting import meet
from ringcore.bootstrap.paths import (
    Endpoint,
    Path,
    announce,
    check_all_listen,
    describe_hosts,
    endpoints_of,
    listen,
    paths_between,
)
from ringcore.bootstrap.sockets import peer_uid, reserve_descriptors

if TYPE_CHECKING:
    from ringcore import _native
    from ringcore.environment.placement import Placement
    from ringcore.environment.settings import Settings

_GROUP = struct.Struct("<I")
_SIGNATURE_BYTES = 32
# In the hello of a connection through a Unix socket, in place of a lane.
_SHARED = 0xFFFF
# Of a link over TCP: the control lane has one connection, each other lane one or several. See transport/tcp/link.hpp.
_CONTROL_LANES, _DATA_LANES = 1, 3
_IP_BIND_ADDRESS_NO_PORT = 24  # of <linux/in.h>; in Python from 3.12 on


@dataclass
class PeerConnection:
    """The authenticated connection to one rank.

    Attributes:
        rank: The peer.
        kind: "shm": one Unix socket and the peer's memory file; "tcp": one socket a lane, and further ones for each
            lane of data where the link is striped; "mpi": nothing.
        fds: Non-blocking descriptors, owned by whoever takes this object.
        segment_fd: The peer's memory file, for "shm".
        secrets: One for each descriptor, 32 bytes, where the link is encrypted.
    """

    rank: int
    kind: str
    fds: list[int]
    segment_fd: int | None = None
    secrets: list[bytes] = field(default_factory=list)


@dataclass
class Mesh:
    """This rank's place among the connected ranks. `host_of[r]` numbers the groups of ranks that share memory."""

    rank: int
    size: int
    epoch: int
    segment_fd: int | None
    peers: list[PeerConnection]
    host_of: list[int]
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def connect(
    placement: Placement,
    settings: Settings,
    *,
    create_segment: Callable[[], int] | None,
    world: _native.MpiWorld | None = None,
) -> Mesh:
    """Meet the other ranks and connect to all of them.

    Args:
        placement: This process's rank and the job's size.
        settings: `transport`, `network`, `network_interfaces`, `connections`, `encryption`, `start_timeout_s`,
            `rendezvous`, `key_fd`, `key_file`, `job_id` are used.
        create_segment: Makes this rank's memory file and returns its descriptor; None: no shared memory.
        world: The ranks meet through this MPI instead of a rendezvous, and it connects those that share no memory.

    Raises:
        BootstrapError: The ranks did not find each other in time, or cannot reach each other.
    """
    deadline = time.monotonic() + settings.start_timeout_s
    with contextlib.ExitStack() as stack:
        over_mpi = world is not None and settings.transport != "tcp"
        check_carriers(settings.encryption, over_mpi=over_mpi)
        key: bytes | None
        if world is None:
            address, key = stack.enter_context(rendezvous_of(placement, settings))
        else:
            where = own_address()
            address, key = f"tcp:[{where}]:0" if ":" in where else f"tcp:{where}:0", None
        segment_fd = create_segment() if create_segment is not None and settings.transport != "tcp" else None
        listeners, endpoints = ([], []) if over_mpi else listen(settings, address)
        for listener in listeners:
            stack.callback(listener.close)
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stack.callback(local.close)
        name = f"ringcore-{secrets.token_hex(16)}"
        local.bind(f"\0{name}")  # abstract: no file, gone with the process
        local.listen(1024)
        contact = {
            "rank": placement.rank,
            "size": placement.size,
            "local_rank": placement.local_rank,
            "job": settings.job_id,
            "version": __version__,
            "start_timeout_s": settings.start_timeout_s,
            "unix": name if segment_fd is not None else None,
            **announce(endpoints),
            **announce_encryption(settings, endpoints),
        }
        if world is None:
            epoch, secret, contacts = meet(address, key, contact, deadline)
            key = key_of_job(secret, settings.job_id or "")
        else:
            epoch, key, contacts = _meet_through(world, contact, deadline)
        check_encryption(contacts)
        if not over_mpi:
            check_all_listen(contacts, settings)
        connector = _Connector(
            placement.rank, epoch, key, contacts, segment_fd, settings, deadline, world if over_mpi else None
        )
        descriptors = connector.most_connections() * (placement.size - 1)
        reserve_descriptors(descriptors, f"a job of {placement.size} ranks")
        try:
            connector.run([*listeners, local])
            host_of = connector.agree_on_hosts(placement.size)
        except BaseException:
            connector.close()
            raise
    return _mesh(placement, epoch, segment_fd, connector.peers, host_of, [c["local_rank"] for c in contacts])


def _meet_through(
    world: _native.MpiWorld, contact: dict[str, Any], deadline: float
) -> tuple[int, bytes, list[dict[str, Any]]]:
    """What a rendezvous tells: the epoch, the key and where every rank is. Rank 0's epoch and key are used."""
    own = {**contact, "epoch": secrets.randbits(31), "key": secrets.token_hex(KEY_BYTES)}
    contacts = [json.loads(data) for data in world.exchange(json.dumps(own).encode(), deadline - time.monotonic())]
    for rank, other in enumerate(contacts):
        if other["version"] != __version__:
            raise BootstrapError(
                f"rank {rank} has ringcore {other['version']}, this rank {__version__}: install the same version "
                "everywhere"
            )
    return contacts[0]["epoch"], bytes.fromhex(contacts[0]["key"]), contacts


@dataclass
class _Connector:
    rank: int
    epoch: int
    key: bytes
    contacts: list[dict[str, Any]]
    segment_fd: int | None
    settings: Settings
    deadline: float
    world: _native.MpiWorld | None = None  # connects those that share no memory
    peers: dict[int, PeerConnection] = field(default_factory=dict)
    _lanes: dict[int, dict[int, tuple[socket.socket, bytes]]] = field(default_factory=dict)
    _control_secrets: dict[int, bytes] = field(default_factory=dict)
    _known: dict[int, list[Endpoint]] = field(default_factory=dict)
    _failure: BaseException | None = None

    def paths_to(self, peer: int) -> list[Path]:
        """The pairs of addresses between this rank and another."""
        lower, higher = sorted((self.rank, peer))
        return paths_between(self._endpoints(lower), self._endpoints(higher))

    def _endpoints(self, rank: int) -> list[Endpoint]:
        if rank not in self._known:
            self._known[rank] = endpoints_of(self.contacts[rank])
        return self._known[rank]

    def most_connections(self) -> int:
        """How many connections there are to a peer at most."""
        theirs = [endpoint.connections for rank in range(len(self.contacts)) for endpoint in self._endpoints(rank)]
        stripes = sum(max(endpoint.connections, *theirs) for endpoint in self._endpoints(self.rank))
        return _CONTROL_LANES + _DATA_LANES * stripes

    def run(self, listeners: list[socket.socket]) -> None:
        """Dial the higher ranks here, accept the lower ones on a second thread."""
        acceptor = Acceptor(listeners, self.key, self._accepted)
        stop = threading.Event()

        def accept() -> None:
            try:
                while not stop.is_set() and not self._lower_complete():
                    acceptor.service(0.05)
            except BaseException as error:  # told to the dialling thread, which raises it
                self._failure = error

        thread = threading.Thread(target=accept, name="ringcore-accept", daemon=True)
        thread.start()
        try:
            for peer in range(self.rank + 1, len(self.contacts)):
                self._dial(peer)
            if self.world is not None:
                self._leave_to(self.world)
            while not self._lower_complete() and self._failure is None:
                if time.monotonic() > self.deadline:
                    missing = [r for r in range(self.rank) if r not in self.peers]
                    raise BootstrapError(
                        f"ranks {missing} did not connect to rank {self.rank} in time; they were told "
                        f"{', '.join(f'{e.ip} port {e.port}' for e in self._endpoints(self.rank))}: can they reach it "
                        f"(firewall, --network)? {describe_hosts(self.contacts)}"
                    )
                thread.join(0.01)
        finally:
            stop.set()
            thread.join()
            acceptor.close()
        if self._failure is not None:
            raise self._failure

    def _leave_to(self, world: _native.MpiWorld) -> None:
        """Leave to MPI who does not share memory: each rank tells with which higher ones it does."""
        higher = [peer for peer in self.peers if peer > self.rank]
        told = [json.loads(data) for data in world.exchange(json.dumps(higher).encode(), self._left())]
        for peer in range(len(self.contacts)):
            shared = self.rank in told[peer] if peer < self.rank else peer in higher
            if peer != self.rank and not shared:
                self.peers[peer] = PeerConnection(peer, "mpi", [])

    def _left(self) -> float:
        return max(0.05, self.deadline - time.monotonic())

    def close(self) -> None:
        """Give up everything that was connected."""
        for connection in self.peers.values():
            for fd in [*connection.fds, *([connection.segment_fd] if connection.segment_fd is not None else [])]:
                os.close(fd)
        for lanes in self._lanes.values():
            for lane, _ in lanes.values():
                lane.close()

    def _lower_complete(self) -> bool:
        return all(rank in self.peers for rank in range(self.rank))

    def _dial(self, peer: int) -> None:
        contact = self.contacts[peer]
        if self.segment_fd is not None and contact["unix"] is not None:
            connection = self._dial_shared(peer, contact["unix"])
            if connection is not None:
                self.peers[peer] = connection
                return
        if self.settings.transport == "shm":
            raise BootstrapError(
                f"rank {self.rank} and rank {peer} do not share memory, but RINGCORE_TRANSPORT=shm allows nothing else"
            )
        if self.world is not None:
            return
        paths = self.paths_to(peer)
        if not paths:
            raise BootstrapError(
                f"ranks {self.rank} and {peer} have no family of addresses in common; choose a network that both are "
                f"on with --network. {describe_hosts([self.contacts[self.rank], contact])}"
            )
        encrypted = is_encrypted(self.settings.encryption, paths)
        sockets: list[tuple[socket.socket, bytes]] = []
        # The first connection of the first path is for control.
        stripes = [paths[0], *(path for path in paths for _ in range(path.connections * _DATA_LANES))]
        for lane, path in enumerate(stripes):
            hello = Hello(MESH, self.epoch, self.rank, peer, lane, encrypted)
            sockets.append(self._introduce(functools.partial(self._dial_tcp, peer, path), hello))
        self._connected(peer, sockets, encrypted=encrypted)

    def _connected(self, peer: int, sockets: list[tuple[socket.socket, bytes]], *, encrypted: bool) -> None:
        secrets_of_lanes = [secret for _, secret in sockets]
        self._control_secrets[peer] = secrets_of_lanes[0]
        fds = [_release(connection) for connection, _ in sockets]
        self.peers[peer] = PeerConnection(peer, "tcp", fds, secrets=secrets_of_lanes if encrypted else [])

    def _introduce(self, dial: Callable[[], socket.socket], hello: Hello) -> tuple[socket.socket, bytes]:
        """An authenticated connection, dialled as often as it takes, and its secret."""

        def once() -> tuple[socket.socket, bytes]:
            connection = dial()
            try:
                return connection, authenticate(connection, self.key, hello, self.deadline)
            except BaseException:
                connection.close()
                raise

        return until_let_in(once, self.deadline)

    def _dial_tcp(self, peer: int, path: Path) -> socket.socket:
        mine, theirs = path.lower, path.higher
        family = socket.AF_INET6 if ":" in theirs.ip else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(max(0.05, self.deadline - time.monotonic()))
        try:
            if self.settings.network or self.settings.network_interfaces:
                # The port is chosen with the peer: bound alone, each takes one that no other connection can have.
                connection.setsockopt(socket.SOL_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                connection.bind(sockaddr(mine.ip, 0, mine.interface))  # else the kernel may take another interface
            connection.connect(sockaddr(theirs.ip, theirs.port, mine.interface))
        except OSError as error:
            connection.close()
            raise BootstrapError(
                f"rank {self.rank} cannot connect from {mine.ip} to rank {peer} at {theirs.ip} port {theirs.port} "
                f"({error}); is a firewall between the hosts, or must another network be chosen with --network? "
                f"{describe_hosts([self.contacts[self.rank], self.contacts[peer]])}"
            ) from error
        return connection

    def _dial_shared(self, peer: int, name: str) -> PeerConnection | None:
        """A connection through the peer's Unix socket, or None when it is not on this host."""
        hello = Hello(MESH, self.epoch, self.rank, peer, _SHARED)
        try:
            connection, _ = self._introduce(functools.partial(_dial_unix, f"\0{name}"), hello)
        except _NotHere:
            return None
        with connection:
            segment_fd = self._exchange_segments(connection)
            return PeerConnection(peer, "shm", [_release(connection)], segment_fd)

    def _exchange_segments(self, connection: socket.socket) -> int:
        if self.segment_fd is None:
            raise BootstrapError("a rank offers shared memory that this rank was told not to use")
        connection.settimeout(max(0.05, self.deadline - time.monotonic()))
        try:
            socket.send_fds(connection, [b"m"], [self.segment_fd])
            data, fds, _, _ = socket.recv_fds(connection, 1, 1)
        except OSError as error:
            raise BootstrapError(f"a rank of this host broke off while memory was exchanged: {error}") from error
        if data != b"m" or len(fds) != 1:
            raise BootstrapError("a rank of this host broke off while memory was exchanged")
        return int(fds[0])

    def _accepted(self, connection: socket.socket, hello: Hello, secret: bytes) -> None:
        """On the accepting thread: a lower rank has dialled."""
        peer = hello.from_rank
        right = hello.purpose == MESH and hello.epoch == self.epoch and hello.to_rank == self.rank and peer < self.rank
        if right and hello.lane != _SHARED:
            right = hello.encrypted == is_encrypted(self.settings.encryption, self.paths_to(peer))
        if not right or peer in self.peers:
            connection.close()
            return
        if hello.lane == _SHARED:
            with connection:
                segment_fd = self._exchange_segments(connection)
                self.peers[peer] = PeerConnection(peer, "shm", [_release(connection)], segment_fd)
            return
        lanes = self._lanes.setdefault(peer, {})
        lanes[hello.lane] = connection, secret
        count = _CONTROL_LANES + _DATA_LANES * sum(path.connections for path in self.paths_to(peer))
        if set(lanes) == set(range(count)):
            del self._lanes[peer]
            self._connected(peer, [lanes[lane] for lane in range(count)], encrypted=hello.encrypted)

    def agree_on_hosts(self, size: int) -> list[int]:
        """Number the groups of ranks that share memory; every rank knows its own group, and tells the others.

        Raises:
            BootstrapError: Two ranks share memory, but not with a third that shares it with one of them.
        """
        # The lowest rank of a group names it. Each rank tells its peers the name of its group over the connections.
        group = min([self.rank, *(p.rank for p in self.peers.values() if p.kind == "shm")])
        if self.world is not None:
            names = {
                rank: int(name) for rank, name in enumerate(self.world.exchange(str(group).encode(), self._left()))
            }
        else:
            names = self._tell_peers(group)
        for peer, known in self.peers.items():
            if (known.kind == "shm") != (names[peer] == group):
                raise BootstrapError(
                    f"ranks {self.rank} and {peer} disagree about who shares memory with whom; set "
                    "RINGCORE_TRANSPORT=tcp on all ranks"
                )
        order = sorted(set(names.values()))
        return [order.index(names[rank]) for rank in range(size)]

    def _tell_peers(self, group: int) -> dict[int, int]:
        names = {self.rank: group}
        for peer in sorted(self.peers):
            with _Borrowed(self.peers[peer].fds[0]) as connection:
                send_all(connection, self._signed_group(self.rank, peer, group), self.deadline)
        for peer in sorted(self.peers):
            with _Borrowed(self.peers[peer].fds[0]) as connection:
                try:
                    told = receive_exactly(connection, _GROUP.size + _SIGNATURE_BYTES, self.deadline)
                except ConnectionClosedError as error:
                    raise BootstrapError(f"rank {peer} broke off while the ranks connected") from error
                (names[peer],) = _GROUP.unpack(told[: _GROUP.size])
                if not hmac.compare_digest(told, self._signed_group(peer, peer, names[peer])):
                    raise BootstrapError(
                        f"what rank {peer} tells rank {self.rank} was changed on its way: something between the two "
                        "hosts changes what they send"
                    )
                connection.setblocking(False)
        return names

    def _signed_group(self, from_rank: int, peer: int, group: int) -> bytes:
        """The name of `from_rank`'s group, as it goes over the connection to `peer`, which may not be encrypted yet."""
        data = _GROUP.pack(group)
        # Over a Unix socket, which stays inside the host, there is no secret and nobody in between.
        key = self._control_secrets.get(peer, b"inside a host")
        return data + hmac.digest(key, struct.pack("<I", from_rank) + data, "sha256")


class _NotHere(Exception):
    """The other end of a Unix socket is not on this host, or belongs to another user."""


def _dial_unix(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(5.0)
    try:
        connection.connect(path)
        if peer_uid(connection) != os.getuid():
            raise _NotHere
    except BlockingIOError as error:  # Its queue is full.
        connection.close()
        raise TurnedAwayError("more processes dial the rank's Unix socket than it can take") from error
    except (OSError, _NotHere) as error:
        connection.close()
        raise _NotHere from error
    return connection


class _Borrowed:
    """A socket object for a descriptor that somebody else owns."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.detach()


def _release(connection: socket.socket) -> int:
    connection.setblocking(False)
    return connection.detach()


def _mesh(
    placement: Placement,
    epoch: int,
    segment_fd: int | None,
    peers: dict[int, PeerConnection],
    host_of: list[int],
    told: list[int | None],
) -> Mesh:
    rank = placement.rank
    # What the launcher told comes first: ranks that reach each other over TCP only may still be of one host.
    local_ranks = [host_of[:r].count(host_of[r]) if local is None else local for r, local in enumerate(told)]
    local_rank = local_ranks[rank]
    local_size = placement.local_size if placement.local_size is not None else host_of.count(host_of[rank])
    cross_rank, cross_size = placement.cross_rank, placement.cross_size
    if cross_rank is None or cross_size is None:
        cross_rank, cross_size = local_ranks[:rank].count(local_rank), local_ranks.count(local_rank)
    ordered = [peers[r] for r in sorted(peers)]
    return Mesh(
        rank, placement.size, epoch, segment_fd, ordered, host_of, local_rank, local_size, cross_rank, cross_size
    )
