"""Sockets that ranks listen on and dial: addresses as text, every address of a name tried, errors with a remedy."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ringcore._errors import BootstrapError

if TYPE_CHECKING:
    from ringcore.bootstrap.interfaces import Address

_RETRY_S = 0.02
_BACKLOG = 1024
_MIN_RTT_AT = 148  # tcpi_min_rtt in the kernel's struct tcp_info, in microseconds
_NOT_MEASURED = 0xFFFF_FFFF


class RanksMissingError(BootstrapError):
    """Not all ranks have come to where they meet, or connected there.

    Args:
        message: What is missing, and the remedy.
        ranks: Those that are missing, as far as this rank knows.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = list(ranks)


class NobodyListensError(BootstrapError):
    """Whoever listened has gone."""


# Listeners, selectors, what a library opens meanwhile.
_SPARE_DESCRIPTORS = 32


def reserve_descriptors(count: int, who: str) -> None:
    """Raise this process's limit of open files so that so many more fit.

    Raises:
        BootstrapError: The system does not allow as many.
    """
    open_now = len(os.listdir("/proc/self/fd"))
    needed = open_now + count + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BootstrapError(
            f"{who} needs {needed} open files in this process ({open_now} are open already), but only {hard} "
            f"are allowed; raise the limit: ulimit -Hn {needed}, LimitNOFILE of the service, or nofile in limits.conf"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def await_name(host: str, limit_s: float) -> None:
    """Wait until a name resolves: that of a pod does a while after the pod has begun, also in the pod itself."""
    deadline = time.monotonic() + limit_s
    while host and time.monotonic() < deadline:
        try:
            socket.getaddrinfo(host.strip("[]"), None)
            return
        except OSError:
            time.sleep(_RETRY_S)


def dial(address: str, deadline: float, *, listens: bool = False) -> socket.socket:
    """Connect to "tcp:host:port" or "unix:path", trying until the deadline while nobody listens yet.

    Args:
        address: See above.
        deadline: By `time.monotonic()`.
        listens: Somebody has listened there already, and does not any more where a connection is refused.

    Raises:
        NobodyListensError: It was refused, and `listens` was given.
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
                f"the rendezvous host {host!r} does not resolve ({error}); check RINGCORE_RENDEZVOUS or --rdzv-endpoint"
            ) from error
    while True:
        problems = []
        for family, target in targets:
            try:
                return _connect(family, target, min(5.0, (deadline - time.monotonic()) / len(targets)))
            except OSError as error:
                problems.append(f"{target[0]}: {error}" if len(targets) > 1 else str(error))
                if listens and isinstance(error, ConnectionRefusedError):
                    raise NobodyListensError(f"nobody listens at {address} any more") from error
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
        if family != socket.AF_UNIX:  # A second message would wait for the first one's acknowledgement: 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def round_trip_s(connection: socket.socket) -> float:
    """The shortest that a connection has seen: it is less than one of a busy host. 0.0 where nobody measures."""
    if connection.family == socket.AF_UNIX:
        return 0.0
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + 4)
    if len(info) < _MIN_RTT_AT + 4:
        return 0.0
    microseconds: int = struct.unpack_from("=I", info, _MIN_RTT_AT)[0]
    return 0.0 if microseconds == _NOT_MEASURED else microseconds / 1e6


def allows_bbr() -> bool:
    """Whether this process may choose BBR to control congestion: root always where there is it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        except OSError:
            return False
    return True


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
            problems.append(f"{format_address(target)} ({error.strerror or error})")
            if error.errno == errno.EADDRINUSE:  # by something that others would take for this one
                remedy = "choose another port"
                break
    raise BootstrapError(f"cannot listen on {', '.join(problems)}; {remedy}")


def _listen_at(family: int, target: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def listen_unix(path: str) -> socket.socket:
    """A listening Unix socket.

    Raises:
        BootstrapError: The path is taken, or cannot be written.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise BootstrapError(f"cannot listen on the socket {path} ({error.strerror})") from error
    return listener


def format_address(address: tuple[Any, ...]) -> str:
    """As `host:port`."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
