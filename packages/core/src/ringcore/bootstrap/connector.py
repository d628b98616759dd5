"""Connects this rank with others, all of them side by side on one thread.

Of two ranks the lower one dials. Whether they share memory is found out by trying: it dials the Unix socket of the
other, both prove the key, and they pass each other the descriptors of their memory files. Names of hosts play no part.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringcore import _native
from ringcore._errors import BootstrapError
from ringcore.bootstrap.acceptor import Acceptor
from ringcore.bootstrap.auth import MESH, TURNED_AWAY, Hello, Key
from ringcore.bootstrap.dialler import Dialler, PendingConnection
from ringcore.bootstrap.encryption import is_encrypted
from ringcore.bootstrap.interfaces import sockaddr
from ringcore.bootstrap.paths import Endpoint, Path, connections_between, describe_hosts, endpoints_of, paths_between
from ringcore.bootstrap.sockets import RanksMissingError
from ringcore.environment.private_folder import peer_uid

if TYPE_CHECKING:
    from ringcore.environment.settings import Settings

# In the hello, in place of a lane: of a connection through a Unix socket, and of one that asks the lower rank to dial.
_SHARED, _ASKED = 0xFFFF, 0xFFFE
# Of a link over TCP: the control lane has one connection, each other lane one or several. See transport/tcp/link.hpp.
_CONTROL_LANES = 1
_IP_BIND_ADDRESS_NO_PORT = 24  # of <linux/in.h>; in Python from 3.12 on
# A memory file is passed along with this byte.
_SEGMENT = b"m"
# How long the loop sleeps at most: it has a deadline, and may be told to stop.
_NAP_S = 0.05
# In a running job whoever cannot be dialled is given up after so long: if it has died, its neighbours tell of it first.
_GRACE_S = 1.0


@dataclass
class PeerConnection:
    """The authenticated connection to one rank.

    Attributes:
        rank: The peer.
        transport: "shm": one Unix socket and the peer's memory file; "tcp": the control lane's socket; "mpi": nothing.
        fds: Non-blocking descriptors, owned by whoever takes this object.
        segment_fd: The peer's memory file, for "shm".
        secrets: One for each descriptor, 32 bytes, where the link is encrypted.
        control_secret: Of the control lane's connection, for "tcp".
    """

    rank: int
    transport: str
    fds: list[int]
    segment_fd: int | None = None
    secrets: list[bytes] = field(default_factory=list)
    control_secret: bytes = b""

    def close(self) -> None:
        """Give it up."""
        for fd in [*self.fds, *([self.segment_fd] if self.segment_fd is not None else [])]:
            os.close(fd)


@dataclass
class Lane:
    """The authenticated connections of a lane: one, or several where the link is striped.

    Attributes:
        rank: The peer.
        number: Of the lane; 0 is for control.
        fds: Non-blocking descriptors, owned by whoever takes this object.
        secrets: One for each descriptor, 32 bytes, where the link is encrypted.
    """

    rank: int
    number: int
    fds: list[int]
    secrets: list[bytes]


@dataclass
class Connector:
    """Makes the connections of one rank; `peers` has those that are complete, `lanes` what was opened later.

    Attributes:
        asked: Higher ranks that want to be dialled; whoever takes them calls `open_lane`.
        lost: Ranks that cannot be dialled, and why, in a running job.
        gone: Ranks that have left a running job, or were left behind: they know the key, and are refused.

    Args:
        rank: This rank.
        epoch: Of the connections.
        key: The job's key.
        contacts: Of all ranks, as the rendezvous has told them.
        segment_fd: This rank's memory file; None: it shares no memory.
        listeners: Where the others dial; closed by `finish`.
        settings: `transport`, `network`, `network_interfaces`, `encryption` are used.
        deadline: By `time.monotonic()`.
        over_mpi: What shares no memory is left to MPI.
    """

    rank: int
    epoch: int
    key: Key
    contacts: list[dict[str, Any]]
    segment_fd: int | None
    listeners: list[socket.socket]
    settings: Settings
    deadline: float
    over_mpi: bool = False
    peers: dict[int, PeerConnection] = field(default_factory=dict)
    lanes: list[Lane] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    # The connections of lanes that are not complete, by their number among all of the link's.
    _parts: dict[tuple[int, int], dict[int, tuple[socket.socket, bytes]]] = field(default_factory=dict)
    _complete: set[tuple[int, int]] = field(default_factory=set)  # lanes
    _is_late: bool = False  # The engine runs.
    _refused_since: dict[int, float] = field(default_factory=dict)
    _exchanging: dict[socket.socket, int] = field(default_factory=dict)  # with which rank
    _elsewhere: set[int] = field(default_factory=set)  # higher ranks that share no memory, where MPI connects those
    _known: dict[int, list[Endpoint]] = field(default_factory=dict)
    _ways: dict[int, list[Path]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._acceptor = Acceptor(self.listeners, self.key, self._accepted)
        self._dialler = Dialler(self.key)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._acceptor.fileno(), selectors.EVENT_READ)
        self._selector.register(self._dialler.fileno(), selectors.EVENT_READ)

    def most_connections(self) -> int:
        """How many connections there are to a peer at most."""
        theirs = [endpoint for rank in range(len(self.contacts)) for endpoint in self._endpoints(rank)]
        stripes = sum(max(connections_between(own, one) for one in theirs) for own in self._endpoints(self.rank))
        return _CONTROL_LANES + _native.DATA_LANES * stripes

    def dial(self, others: Iterable[int], sharing: Container[int] | None = None) -> None:
        """Begin to connect with those of these ranks that are this one's to dial.

        Args:
            others: These ranks.
            sharing: Those that share memory with this one, where that is known.
        """
        # The next ones first: then not all ranks dial the same one at the same time.
        for peer in sorted(peer for peer in others if peer > self.rank):
            if sharing is None or peer in sharing:
                self._dial(peer, known=sharing is not None)
            else:
                self._dial_lanes(peer)

    def connect_late(self) -> None:
        """From here on connections are lanes of links that the engine has."""
        self._is_late = True

    def fileno(self) -> int:
        """Readable when `service` has something to do."""
        return self._selector.fileno()

    def serve_until_connected(self, others: Iterable[int]) -> None:
        """Go on until these ranks are connected, or left to MPI.

        Raises:
            BootstrapError: One of them cannot be reached, or has not come up to the deadline.
        """
        missing = {peer for peer in others if peer != self.rank}
        while True:
            missing -= self.peers.keys() | self._elsewhere
            if not missing:
                return
            if time.monotonic() > self.deadline:
                raise RanksMissingError(self._describe_missing(sorted(missing)), sorted(missing))
            self.service()

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Answers the others on a thread of its own, while this one waits for something else.

        Raises:
            BootstrapError: What went wrong there.
        """
        stop = threading.Event()
        failures: list[BaseException] = []

        def serve() -> None:
            try:
                while not stop.is_set():
                    self.service()
            except BaseException as error:  # raised on the thread that waits
                failures.append(error)

        thread = threading.Thread(target=serve, name="ringcore-connect", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failures:
            raise failures[0]

    def open_lane(self, peer: int, lane: int) -> None:
        """Begin to connect a lane. The lower rank dials: of data both want it, for control it may have to be asked.

        Raises:
            BootstrapError: There is no way.
        """
        if (peer, lane) in self._complete:
            return
        if self.rank < peer:
            self._dial_connections(peer, self._numbers(peer, lane))
        elif lane == 0:
            self._dial_connections(peer, [_ASKED])

    def describe_lane(self, peer: int) -> str:
        """Between which addresses a lane is to be connected."""
        path = self._way(peer, 0)
        lower, higher = sorted((self.rank, peer))
        return f"rank {lower} at {path.lower.ip} dials rank {higher} at {path.higher.ip} port {path.higher.port}"

    def stop_listening(self, listener: socket.socket) -> None:
        """Nobody dials there any more."""
        self._acceptor.stop_listening(listener)

    def finish(self) -> None:
        """Listen no more, give up what is half connected; what is connected stays."""
        self._dialler.close()
        self._acceptor.close()
        self._selector.close()
        for connection in self._exchanging:
            connection.close()
        for parts in self._parts.values():
            for part, _ in parts.values():
                part.close()
        for lane in self.lanes:  # that nobody has taken
            for fd in lane.fds:
                os.close(fd)
        self.lanes.clear()

    def close(self) -> None:
        """Give up everything that was connected."""
        self.finish()
        for peer in self.peers.values():
            peer.close()

    def service(self, limit_s: float = _NAP_S) -> None:
        """Go on with what can go on, after a moment at most.

        Raises:
            BootstrapError: A rank cannot be reached, broke off, or does not know the key.
        """
        nap_s = min(limit_s, self._dialler.service())
        for key, _ in self._selector.select(nap_s):
            if key.fileobj in self._exchanging:
                self._take_segment(key.fileobj)
        self._acceptor.service(0)

    def _describe_missing(self, missing: list[int]) -> str:
        lower = [peer for peer in missing if peer < self.rank]
        higher = [peer for peer in missing if peer > self.rank]
        problems = []
        if lower:
            told = ", ".join(f"{e.ip} port {e.port}" for e in self._endpoints(self.rank)) or "a Unix socket"
            problems.append(
                f"ranks {lower} did not connect to rank {self.rank} in time; they were told {told}: can they reach it "
                "(firewall, --network)?"
            )
        if higher:
            problems.append(
                f"ranks {higher} did not let rank {self.rank} in in time: are they stopped? Or {TURNED_AWAY}"
            )
        return f"{' '.join(problems)} {describe_hosts(self.contacts)}"

    # The lower rank's side.

    def _dial(self, peer: int, *, known: bool) -> None:
        name = self.contacts[peer]["unix"]
        if self.segment_fd is None or name is None:
            self._dial_lanes(peer)
            return
        self._dialler.dial([
            PendingConnection(
                Hello(MESH, self.epoch, self.rank, peer, _SHARED),
                functools.partial(_open_unix, f"\0{name}"),
                lambda connection, _: self._offer_segment(peer, connection),
                self._not_here(peer) if known else lambda _: self._dial_lanes(peer),  # It is not on this host.
            )
        ])  # fmt: skip

    def _dial_lanes(self, peer: int) -> None:
        """The two share no memory."""
        if self.settings.transport == "shm":
            raise BootstrapError(
                f"rank {self.rank} and rank {peer} do not share memory, but RINGCORE_TRANSPORT=shm allows nothing else"
            )
        if self.over_mpi:
            self._elsewhere.add(peer)
            return
        self._dial_connections(peer, [0])

    def _not_here(self, peer: int) -> Callable[[OSError], None]:
        def refused(error: OSError) -> None:
            raise BootstrapError(
                f"ranks {self.rank} and {peer} say that they run on one system, but do not reach each other there "
                f"({error}); set RINGCORE_TRANSPORT=tcp on all ranks"
            ) from error

        return refused

    def _dial_connections(self, peer: int, numbers: Iterable[int]) -> None:
        encrypted = is_encrypted(self.settings.encryption, self._stripes(peer))
        self._dialler.dial(self._pending(peer, number, encrypted=encrypted) for number in numbers)

    def _pending(self, peer: int, number: int, *, encrypted: bool) -> PendingConnection:
        path = self._way(peer, number)
        pending = PendingConnection(
            Hello(MESH, self.epoch, self.rank, peer, number, encrypted),
            functools.partial(self._open_tcp, path, peer),
            self._dialled(peer, number, encrypted=encrypted),
            lambda error: self._no_way(pending, path, error),
        )
        return pending

    def _way(self, peer: int, number: int) -> Path:
        """Of one of the link's connections."""
        return self._stripes(peer)[0 if number == _ASKED else number]

    def _numbers(self, peer: int, lane: int) -> list[int]:
        """Which of the link's connections are the lane's. See transport/tcp/link.hpp."""
        return [0] if lane == 0 else list(range(lane, len(self._stripes(peer)), _native.DATA_LANES))

    def _stripes(self, peer: int) -> list[Path]:
        """The way of each connection to a peer; that of the first, which is for control, is the first path.

        Raises:
            BootstrapError: There is none.
        """
        if peer in self._ways:
            return self._ways[peer]
        lower, higher = sorted((self.rank, peer))
        paths = paths_between(self._endpoints(lower), self._endpoints(higher))
        if not paths:
            raise BootstrapError(
                f"ranks {self.rank} and {peer} have no family of addresses in common; choose a network that both are "
                f"on with --network. {describe_hosts([self.contacts[self.rank], self.contacts[peer]])}"
            )
        self._ways[peer] = [paths[0], *(path for path in paths for _ in range(path.connections * _native.DATA_LANES))]
        return self._ways[peer]

    def _endpoints(self, rank: int) -> list[Endpoint]:
        if rank not in self._known:
            self._known[rank] = endpoints_of(self.contacts[rank])
        return self._known[rank]

    def _dialled(self, peer: int, number: int, *, encrypted: bool) -> Callable[[socket.socket, bytes], None]:
        def dialled(connection: socket.socket, secret: bytes) -> None:
            if number == _ASKED:  # It knows.
                connection.close()
            else:
                self._add(peer, number, connection, secret, encrypted=encrypted)

        return dialled

    def _no_way(self, pending: PendingConnection, path: Path, error: OSError) -> None:
        peer = pending.hello.to_rank
        mine, theirs = self._ends(path, peer)
        problem = (
            f"rank {self.rank} cannot connect from {mine.ip} to rank {peer} at {theirs.ip} port {theirs.port} "
            f"({error}); is a firewall between the hosts, or must another network be chosen with --network? "
            f"{describe_hosts([self.contacts[self.rank], self.contacts[peer]])}"
        )
        if not self._is_late:
            raise BootstrapError(problem) from error
        if time.monotonic() < self._refused_since.setdefault(peer, time.monotonic()) + _GRACE_S:
            self._dialler.dial_later(pending)
        else:
            self.lost[peer] = problem

    def _ends(self, path: Path, peer: int) -> tuple[Endpoint, Endpoint]:
        """Of this rank, and of the peer."""
        return (path.lower, path.higher) if self.rank < peer else (path.higher, path.lower)

    def _open_tcp(self, path: Path, peer: int) -> socket.socket:
        mine, theirs = self._ends(path, peer)
        connection = socket.socket(socket.AF_INET6 if ":" in theirs.ip else socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            if self.settings.network or self.settings.network_interfaces:
                # The port is chosen with the peer: bound alone, each takes one that no other connection can have.
                connection.setsockopt(socket.SOL_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                connection.bind(sockaddr(mine.ip, 0, mine.interface))  # else the kernel may take another interface
            begin_to_connect(connection, sockaddr(theirs.ip, theirs.port, mine.interface))
        except BaseException:
            connection.close()
            raise
        return connection

    # The higher rank's side.

    def _accepted(self, connection: socket.socket, hello: Hello, secret: bytes) -> None:
        peer = hello.from_rank
        right = hello.purpose == MESH and hello.epoch == self.epoch and hello.to_rank == self.rank
        right = right and peer not in self.gone
        if right and peer > self.rank and hello.lane == _ASKED:
            self.asked.add(peer)
        if not right or peer >= self.rank or peer in self._exchanging.values():
            connection.close()
        elif hello.lane == _SHARED and peer not in self.peers:
            self._offer_segment(peer, connection)
        elif self._expects(peer, hello):
            self._add(peer, hello.lane, connection, secret, encrypted=hello.encrypted)
        else:
            connection.close()

    def _expects(self, peer: int, hello: Hello) -> bool:
        """Whether that connection over TCP can be: control first, each once, encrypted as both have agreed."""
        stripes = self._stripes(peer)
        if hello.lane >= len(stripes) or hello.encrypted != is_encrypted(self.settings.encryption, stripes):
            return False
        # The peer may have dialled its first lane before this rank has seen that all are connected.
        return (peer, self._lane_of(hello.lane)) not in self._complete

    # Both.

    def _lane_of(self, number: int) -> int:
        return 0 if number == 0 else (number - 1) % _native.DATA_LANES + 1

    def _add(self, peer: int, number: int, connection: socket.socket, secret: bytes, *, encrypted: bool) -> None:
        lane = self._lane_of(number)
        parts = self._parts.setdefault((peer, lane), {})
        if number in parts:
            parts[number][0].close()  # The peer has given it up, or it would not have dialled again.
        parts[number] = connection, secret
        numbers = self._numbers(peer, lane)
        if len(parts) < len(numbers):
            return
        del self._parts[peer, lane]
        self._complete.add((peer, lane))
        self._refused_since.pop(peer, None)
        secrets = [parts[each][1] for each in numbers]
        fds = [_release(parts[each][0]) for each in numbers]
        if lane == 0 and not self._is_late:
            self.peers[peer] = PeerConnection(peer, "tcp", fds, None, secrets if encrypted else [], secrets[0])
        else:
            self.lanes.append(Lane(peer, lane, fds, secrets if encrypted else []))

    def _offer_segment(self, peer: int, connection: socket.socket) -> None:
        """Send this rank's memory file; the peer's comes when it does."""
        if self.segment_fd is None:
            raise BootstrapError("a rank offers shared memory that this rank was told not to use")
        try:
            socket.send_fds(connection, [_SEGMENT], [self.segment_fd])
        except OSError as error:
            raise BootstrapError(f"rank {peer} broke off while memory was exchanged: {error}") from error
        self._exchanging[connection] = peer
        self._selector.register(connection, selectors.EVENT_READ)

    def _take_segment(self, connection: socket.socket) -> None:
        peer = self._exchanging[connection]
        try:
            data, fds, _, _ = socket.recv_fds(connection, len(_SEGMENT), 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise BootstrapError(f"rank {peer} broke off while memory was exchanged: {error}") from error
        if data != _SEGMENT or len(fds) != 1:
            raise BootstrapError(f"rank {peer} broke off while memory was exchanged")
        del self._exchanging[connection]
        self._selector.unregister(connection)
        self._complete.add((peer, 0))
        self.peers[peer] = PeerConnection(peer, "shm", [_release(connection)], fds[0])


def begin_to_connect(connection: socket.socket, address: Any) -> None:
    """Raises OSError where it is known at once that this leads nowhere."""
    try:
        connection.connect(address)
    except BlockingIOError:
        if connection.family == socket.AF_UNIX:  # Its queue is full; nothing has begun.
            raise


def _open_unix(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        begin_to_connect(connection, path)
        if peer_uid(connection) != os.getuid():
            raise OSError("it belongs to another user")
    except BaseException:
        connection.close()
        raise
    return connection


def _release(connection: socket.socket) -> int:
    connection.setblocking(False)
    return connection.detach()
