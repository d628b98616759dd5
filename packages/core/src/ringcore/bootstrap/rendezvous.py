"""Where the ranks of a job meet: each posts how it can be reached, and gets everybody's answer.

A message is a length (4 bytes, little-endian) and JSON. Rounds: when every rank has posted, all of them get the table,
and the next posts begin the next round; its number is the epoch of the connections made in it.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import struct
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ringcore._errors import BootstrapError
from ringcore.bootstrap.acceptor import Acceptor
from ringcore.bootstrap.auth import (
    KEY_BYTES,
    RENDEZVOUS,
    Hello,
    authenticate,
    receive_exactly,
    send_all,
)

if TYPE_CHECKING:
    from ringcore.bootstrap.interfaces import Address

_LENGTH = struct.Struct("<I")
MAX_CONTACT_BYTES = 64 * 1024
_PEER_CREDENTIALS = struct.Struct("3i")
_RETRY_S = 0.02


class RanksMissingError(BootstrapError):
    """Not all ranks have come to where they meet."""


class RendezvousServer:
    """Serves one job, on a daemon thread of its own.

    Args:
        size: Ranks of the job.
        key: The job's key, 32 bytes.
        host: Address to listen on; loopback unless hosts are named.
        port: 0: any free one.
        path: Listen on this Unix socket instead, and give the key to whoever connects as the same user. The folder
            must keep everybody else out.
        job: The job's name: ranks of another one that know the key are sent away. None: that of who comes first.

    Raises:
        BootstrapError: The address cannot be listened on.
    """

    def __init__(
        self,
        size: int,
        key: bytes,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str | None = None,
        job: str | None = None,
    ) -> None:
        if len(key) != KEY_BYTES:
            raise BootstrapError(f"the job's key has {len(key)} bytes instead of {KEY_BYTES}")
        self._size = size
        self._key = key
        self._path = path
        self._job = job
        self._refused = ""
        self._listener = _listen_unix(path) if path is not None else listen_tcp(host, port)
        self.address = f"unix:{path}" if path is not None else f"tcp:{_format(self._listener.getsockname())}"
        self._contacts: dict[int, dict[str, Any]] = {}
        self._waiting: dict[int, socket.socket] = {}
        self._reading: dict[socket.socket, bytes] = {}
        self._epoch = 1
        self._round_began = 0.0
        self._rounds_served = 0
        self._stop_read, self._stop_write = os.pipe()
        self._served = threading.Condition()  # Guards: _rounds_served.
        self._thread = threading.Thread(target=self._serve, name="ringcore-rendezvous", daemon=True)
        self._thread.start()

    def __enter__(self) -> RendezvousServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; what is connected is closed."""
        if self._stop_write >= 0:
            os.close(self._stop_write)
            self._stop_write = -1
            self._thread.join(5)
            if self._path is not None and os.path.exists(self._path):
                os.unlink(self._path)

    def wait_served(self, rounds: int, limit_s: float) -> bool:
        """Wait until that many rounds have been completed."""
        with self._served:
            return self._served.wait_for(lambda: self._rounds_served >= rounds, limit_s)

    def posted(self) -> list[int]:
        """The ranks that have come in this round and wait for the others."""
        return sorted(self._contacts)

    def _serve(self) -> None:
        acceptor = Acceptor([self._listener], self._key, self._accepted, self._welcome)
        selector = selectors.DefaultSelector()
        selector.register(self._stop_read, selectors.EVENT_READ)
        selector.register(acceptor.fileno(), selectors.EVENT_READ)
        self._selector = selector
        try:
            while True:
                for key, _ in selector.select(0.25):
                    if key.fd == self._stop_read:
                        return
                    if key.fileobj in self._reading:
                        self._read(key.fileobj)
                    elif key.data is not None:
                        self._forget(key.data)
                acceptor.service(0)
                self._check_missing()
        finally:
            acceptor.close()
            for connection in [*self._reading, *self._waiting.values()]:
                connection.close()
            selector.close()
            os.close(self._stop_read)

    def _welcome(self, connection: socket.socket) -> None:
        """Processes of this user on this host get the key from us: the kernel says who they are."""
        if self._path is None:
            return
        if peer_uid(connection) != os.getuid():
            raise BootstrapError(f"it belongs to user {peer_uid(connection)}")
        connection.send(self._key)

    def _accepted(self, connection: socket.socket, hello: Hello) -> None:
        if hello.purpose != RENDEZVOUS:
            connection.close()
            return
        self._reading[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(MAX_CONTACT_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        received = self._reading[connection] + data
        self._reading[connection] = received
        complete = len(received) >= _LENGTH.size and len(received) >= _LENGTH.size + _LENGTH.unpack_from(received)[0]
        if data and not complete and len(received) <= MAX_CONTACT_BYTES:
            return
        self._selector.unregister(connection)
        del self._reading[connection]
        contact = _parse(received[_LENGTH.size :]) if complete else None
        if contact is None:
            connection.close()
            return
        self._post(connection, contact)

    def _forget(self, rank: int) -> None:
        """A waiting rank says nothing more: it has gone, and another process may come in its place."""
        connection = self._waiting.pop(rank)
        del self._contacts[rank]
        self._selector.unregister(connection)
        connection.close()

    def _post(self, connection: socket.socket, contact: dict[str, Any]) -> None:
        if not self._contacts:
            self._round_began = time.monotonic()
        other_job = self._other_job(contact)
        problem = other_job or self._problem(contact)
        if problem is not None:
            _send(connection, {"error": problem})
            connection.close()
            if not other_job:
                self._fail(problem)
            return
        rank = int(contact["rank"])
        self._contacts[rank] = contact
        self._waiting[rank] = connection
        self._selector.register(connection, selectors.EVENT_READ, rank)
        if len(self._contacts) == self._size:
            table = [self._contacts[r] for r in range(self._size)]
            self._answer({"epoch": self._epoch, "contacts": table})
            self._epoch += 1
            with self._served:
                self._rounds_served += 1
                self._served.notify_all()

    def _other_job(self, contact: dict[str, Any]) -> str | None:
        """What to tell a rank of another job that has the same key and comes to the same address."""
        job = contact.get("job") or ""
        here = self._job
        if here is None:
            here = next((known.get("job") or "" for known in self._contacts.values()), job)
        if job == here:
            return None
        self._refused = f"; refused was rank {contact.get('rank')} of {_called(job)}"
        return (
            f"the ranks of {_called(here)} meet at {self.address}, and rank {contact.get('rank')} is of "
            f"{_called(job)}: give each job a rendezvous of its own, and all ranks of one job the same RINGCORE_JOB_ID"
        )

    def _problem(self, contact: dict[str, Any]) -> str | None:
        rank, size, version = contact.get("rank"), contact.get("size"), contact.get("version")
        if size != self._size:
            return f"rank {rank} believes that the job has {size} ranks, but it was started with {self._size}"
        if not isinstance(rank, int) or not 0 <= rank < self._size:
            return f"there is no rank {rank} in a job of {self._size} ranks"
        if rank in self._contacts:
            return (
                f"two processes say that they are rank {rank}; start each rank once, or give the processes different "
                "ranks (is a launcher missing whose variables ringcore reads? see `ringcore env`)"
            )
        for other, known in self._contacts.items():
            if known.get("version") != version:
                return (
                    f"rank {other} runs ringcore {known.get('version')}, rank {rank} runs {version}; install the same "
                    "version on all hosts"
                )
        return None

    def _check_missing(self) -> None:
        if not self._contacts:
            return
        limit = min(float(contact["start_timeout_s"]) for contact in self._contacts.values())
        if time.monotonic() - self._round_began > limit:
            missing = [rank for rank in range(self._size) if rank not in self._contacts]
            self._fail(
                f"ranks {missing} did not come within {limit:g} s; look at their output, and raise "
                f"RINGCORE_START_TIMEOUT_S if they only start slowly{self._refused}",
                missing=missing,
            )

    def _fail(self, problem: str, **more: Any) -> None:
        self._answer({"error": problem, **more})

    def _answer(self, message: dict[str, Any]) -> None:
        for connection in self._waiting.values():
            self._selector.unregister(connection)
            _send(connection, message)
            connection.close()
        self._waiting.clear()
        self._contacts.clear()


def meet(
    address: str, key: bytes | None, contact: dict[str, Any], deadline: float
) -> tuple[int, bytes, list[dict[str, Any]]]:
    """Post this rank's contact.

    Args:
        address: Of the server.
        key: The job's key; None where the server gives it (a Unix socket of this user).
        contact: JSON; `rank`, `size`, `job`, `version` and `start_timeout_s` are read by the server.
        deadline: By `time.monotonic()`.

    Returns:
        The epoch, the key, and the contacts of all ranks.

    Raises:
        RanksMissingError: The server cannot be reached, or not all ranks came to it.
        BootstrapError: It does not know the key, or says that the job cannot start.
    """
    with dial(address, deadline) as connection:
        if connection.family == socket.AF_UNIX:
            if peer_uid(connection) != os.getuid():
                raise BootstrapError(f"the rendezvous socket {address} belongs to another user")
            key = receive_exactly(connection, KEY_BYTES, deadline)
        if key is None:
            raise BootstrapError(f"no key for the rendezvous at {address}; set RINGCORE_KEY_FILE")
        authenticate(connection, key, Hello(RENDEZVOUS, 0, contact["rank"], 0), deadline)
        data = json.dumps(contact).encode()
        send_all(connection, _LENGTH.pack(len(data)) + data, deadline)
        # The server itself says which ranks are missing, a little after this rank's patience ends.
        patience = deadline + 2.0
        (length,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size, patience))
        answer: dict[str, Any] = json.loads(receive_exactly(connection, length, patience))
    if "error" in answer:
        kind = RanksMissingError if "missing" in answer else BootstrapError
        raise kind(f"the job cannot start: {answer['error']}")
    return int(answer["epoch"]), key, list(answer["contacts"])


def await_name(host: str, limit_s: float) -> None:
    """Wait until a name resolves: that of a pod does a while after the pod has begun, also in the pod itself."""
    deadline = time.monotonic() + limit_s
    while host and time.monotonic() < deadline:
        try:
            socket.getaddrinfo(host.strip("[]"), None)
            return
        except OSError:
            time.sleep(_RETRY_S)


def dial(address: str, deadline: float) -> socket.socket:
    """Connect to "tcp:host:port" or "unix:path", trying until the deadline while nobody listens yet.

    Raises:
        RanksMissingError: Nobody answers.
        BootstrapError: The host does not resolve (at once).
    """
    kind, _, rest = address.partition(":")
    targets: list[tuple[int, Any]] = [(socket.AF_UNIX, rest)]
    if kind != "unix":
        host, _, port = rest.rpartition(":")
        try:
            targets = _resolve(host.strip("[]"), int(port))
        except OSError as error:
            raise BootstrapError(
                f"the rendezvous host {host!r} does not resolve ({error}); check RINGCORE_RENDEZVOUS"
            ) from error
    while True:
        problems = []
        for family, target in targets:
            try:
                return _connect(family, target, min(5.0, (deadline - time.monotonic()) / len(targets)))
            except OSError as error:
                problems.append(f"{target[0]}: {error}" if len(targets) > 1 else str(error))
        if time.monotonic() > deadline:
            raise RanksMissingError(
                f"nobody answers at {address} ({'; '.join(problems)}); is rank 0 (or the launcher) running, and does a "
                "firewall stand between the hosts?"
            )
        time.sleep(_RETRY_S)


def _resolve(host: str, port: int) -> list[tuple[int, Any]]:
    """Family and address of everything that a name means; raises OSError where it means nothing."""
    return [(family, target) for family, *_, target in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _connect(family: int, target: Any, limit_s: float) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(max(0.05, limit_s))
        connection.connect(target)
    except BaseException:
        connection.close()
        raise
    return connection


def listen_tcp(host: str, port: int = 0) -> socket.socket:
    """A listening socket, at the first address of `host` that is of this machine.

    Raises:
        BootstrapError: That address is in use, or none is of this machine.
    """
    try:
        targets = _resolve(host, port)
    except OSError as error:
        raise BootstrapError(
            f"the host {host!r} does not resolve ({error}); name an address of this machine"
        ) from error
    return _listen(targets)


def listen_at(address: Address) -> socket.socket:
    """A listening socket on any free port of an address of this host.

    Raises:
        BootstrapError: It cannot be listened on.
    """
    return _listen([(socket.AF_INET6 if ":" in address.ip else socket.AF_INET, address.sockaddr(0))])


def _listen(targets: list[tuple[int, Any]]) -> socket.socket:
    problems, remedy = [], "name an address of this machine"
    for family, target in targets:
        try:
            return _listen_at(family, target)
        except OSError as error:
            problems.append(f"{_format(target)} ({error.strerror or error})")
            if error.errno == errno.EADDRINUSE:  # by something that others would take for this one
                remedy = "choose another port"
                break
    raise BootstrapError(f"cannot listen on {', '.join(problems)}; {remedy}")


def _listen_at(family: int, target: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


def _listen_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise BootstrapError(f"cannot listen on the socket {path} ({error.strerror})") from error
    return listener


def peer_uid(connection: socket.socket) -> int:
    """The user on the other end of a Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    return int(_PEER_CREDENTIALS.unpack(credentials)[1])


def _parse(data: bytes) -> dict[str, Any] | None:
    """A contact; None where it is none."""
    try:
        contact = json.loads(data)
        float(contact["start_timeout_s"])
    except (ValueError, TypeError, KeyError):
        return None
    return contact if isinstance(contact, dict) else None


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    try:
        connection.settimeout(5.0)
        connection.sendall(_LENGTH.pack(len(data)) + data)
    except OSError:
        pass  # it is gone; the others hear of it when they try to connect to it


def _called(job: str | None) -> str:
    return f"job {job!r}" if job else "a job without a name"


def _format(address: tuple[Any, ...]) -> str:
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


__all__ = ["RendezvousServer", "await_name", "dial", "listen_at", "listen_tcp", "meet", "peer_uid"]
