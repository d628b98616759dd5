"""Who shares memory with whom: among few, each tells every other which group it is in; among many, contacts say it."""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringcore._errors import BootstrapError
from ringcore.bootstrap.auth import ConnectionClosedError, receive_exactly, send_all
from ringcore.bootstrap.connector import PeerConnection

if TYPE_CHECKING:
    from ringcore import _native

# Where many meet, they do not all talk with each other: what their contacts say has to do.
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_GROUP = struct.Struct("<I")
_SIGNATURE_BYTES = 32


def own_domain() -> str:
    """Says alike for processes of one user that reach each other's Unix sockets: one start of a system, one network."""
    try:
        with open(_BOOT_ID) as file:
            boot = file.read().strip()
    except OSError:  # not every sandbox has it
        boot = socket.gethostname()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}/{os.getuid()}"


def told_by(contacts: Sequence[Mapping[str, Any]]) -> list[int]:
    """Number the groups of ranks that share memory, for each rank, by what they have said of themselves."""
    names = [contact["domain"] if contact["unix"] is not None else contact["rank"] for contact in contacts]
    order = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [order[name] for name in names]


@dataclass
class Groups:
    """The ranks of one host that share memory are a group; its lowest rank names it.

    Args:
        rank: This rank.
        peers: With whom it is connected, and how.
        deadline: By `time.monotonic()`.
    """

    rank: int
    peers: dict[int, PeerConnection]
    deadline: float

    def agree(self, size: int, world: _native.MpiWorld | None) -> list[int]:
        """Number the groups, for each rank.

        Raises:
            BootstrapError: Two ranks share memory, but not with a third that shares it with one of them.
        """
        group = min([self.rank, *(p.rank for p in self.peers.values() if p.transport == "shm")])
        if world is not None:
            limit_s = max(0.05, self.deadline - time.monotonic())
            names = {rank: int(name) for rank, name in enumerate(world.exchange(str(group).encode(), limit_s))}
        else:
            names = self._tell_peers(group)
        for peer, known in self.peers.items():
            if (known.transport == "shm") != (names[peer] == group):
                raise BootstrapError(
                    f"ranks {self.rank} and {peer} disagree about who shares memory with whom; set "
                    "RINGCORE_TRANSPORT=tcp on all ranks"
                )
        order = sorted(set(names.values()))
        return [order.index(names[rank]) for rank in range(size)]

    def _tell_peers(self, group: int) -> dict[int, int]:
        names = {self.rank: group}
        for peer in sorted(self.peers):
            with _Borrowed(self.peers[peer].fds[0]) as connection, self._naming(peer):
                send_all(connection, self._signed(self.rank, peer, group), self.deadline)
        for peer in sorted(self.peers):
            with _Borrowed(self.peers[peer].fds[0]) as connection:
                with self._naming(peer):
                    told = receive_exactly(connection, _GROUP.size + _SIGNATURE_BYTES, self.deadline)
                (names[peer],) = _GROUP.unpack(told[: _GROUP.size])
                if not hmac.compare_digest(told, self._signed(peer, peer, names[peer])):
                    raise BootstrapError(
                        f"what rank {peer} tells rank {self.rank} was changed on its way: something between the two "
                        "hosts changes what they send"
                    )
                connection.setblocking(False)
        return names

    @contextlib.contextmanager
    def _naming(self, peer: int) -> Iterator[None]:
        try:
            yield
        except ConnectionClosedError as error:
            raise BootstrapError(
                f"rank {peer} broke off while rank {self.rank} and the others connected: look at what rank {peer} says"
            ) from error
        except BootstrapError as error:
            raise BootstrapError(
                f"rank {peer} is connected with rank {self.rank}, and could not tell it who shares memory with whom "
                f"({error}): look at what rank {peer} says; it may wait for another one"
            ) from error

    def _signed(self, from_rank: int, peer: int, group: int) -> bytes:
        """The name of `from_rank`'s group, as it goes over the connection to `peer`, which may not be encrypted yet."""
        data = _GROUP.pack(group)
        # Over a Unix socket, which stays inside the host, there is no secret and nobody in between.
        key = self.peers[peer].control_secret or b"inside a host"
        return data + hmac.digest(key, struct.pack("<I", from_rank) + data, "sha256")


class _Borrowed:
    """A socket object for a descriptor that somebody else owns."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.detach()
