"""Among many the table of all contacts goes from rank to rank: the rendezvous gives it to rank 0 alone.

It tells the others the table's digest, and each of them listens for a rank that hands it the table; whoever has it
hands it on to a few. That is done before ranks connect, so that all check the same table as in a small job. A rank that
is not handed it in time asks the rendezvous, so that no rank's start depends on another one's.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringcore._errors import BootstrapError
from ringcore.bootstrap.acceptor import Acceptor
from ringcore.bootstrap.auth import TABLE, Hello, Key, authenticate, receive_exactly, send_all
from ringcore.bootstrap.contacts import HEADER, MAX_CONTACT_BYTES, RANK, headers, is_genuine
from ringcore.bootstrap.interfaces import Address, sockaddr
from ringcore.bootstrap.paths import endpoints_of
from ringcore.bootstrap.sockets import listen_at

_log = logging.getLogger("ringcore")

# Each hands the table on to so many ranks: 10,000 have it after five steps.
CHILDREN = 8
# Whoever has not been handed it after so long asks the rendezvous, and one that does not take it is left to do so.
_PATIENCE_S = 5.0


def listen_for_table(contact: Mapping[str, Any]) -> socket.socket:
    """Where a rank is handed the table: at its first address, on a port for this alone.

    Raises:
        BootstrapError: It cannot be listened on.
    """
    first = endpoints_of(contact)[0]
    return listen_at(Address(first.interface, first.ip, first.prefix))


@dataclass
class Spread:
    """A rank's part in one round.

    Args:
        rank: This rank.
        size: Of the job.
        epoch: Of the round.
        key: Of the round.
        deadline: By `time.monotonic()`.
    """

    rank: int
    size: int
    epoch: int
    key: Key
    deadline: float

    def take(self, listener: socket.socket, sha256: str) -> bytes | None:
        """Wait for a rank that hands on the table.

        Args:
            listener: See `listen_for_table`; closed.
            sha256: Of the table, as the rendezvous has told it.

        Returns:
            The packed table; None: nobody has handed it on.

        Raises:
            BootstrapError: What a rank hands on is another table.
        """
        until = self._patience()
        accepted: list[tuple[socket.socket, Hello, bytes]] = []
        acceptor = Acceptor([listener], self.key, lambda *one: accepted.append(one))
        try:
            while time.monotonic() < until:
                acceptor.service(until - time.monotonic())
                while accepted:
                    data = self._receive(*accepted.pop(0), sha256, until)
                    if data is not None:
                        return data
        finally:
            acceptor.close()
            for connection, *_ in accepted:
                connection.close()
        _log.info("rank %d was not handed the table of the ranks, and asks the rendezvous for it", self.rank)
        return None

    def hand_on(self, data: bytes, contacts: Sequence[Mapping[str, Any]]) -> None:
        """Give the packed table to the next ranks, side by side. Whoever does not take it asks the rendezvous.

        Args:
            data: The packed table.
            contacts: What it holds.
        """
        first = self.rank * CHILDREN + 1
        interface = endpoints_of(contacts[self.rank])[0].interface
        threads = [
            threading.Thread(target=self._hand_to, args=(contact, interface, data), name="ringcore-table", daemon=True)
            for contact in contacts[first : first + CHILDREN]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _patience(self) -> float:
        now = time.monotonic()
        return now + min(_PATIENCE_S, (self.deadline - now) / 2)

    def _receive(
        self, connection: socket.socket, hello: Hello, secret: bytes, sha256: str, until: float
    ) -> bytes | None:
        with connection:
            if hello.purpose != TABLE or hello.to_rank != self.rank:
                return None
            try:
                header = receive_exactly(connection, HEADER.size, until)
                length, _ = HEADER.unpack(header)
                if length > self.size * MAX_CONTACT_BYTES:  # No rank sends it.
                    return None
                data = receive_exactly(connection, length, until)
            except BootstrapError as error:  # It has died, or hangs.
                _log.info("rank %d did not hand rank %d the whole table: %s", hello.from_rank, self.rank, error)
                return None
        if not is_genuine(header, data, RANK, secret):
            raise BootstrapError(
                f"the table of the ranks that rank {hello.from_rank} handed rank {self.rank} was changed on its way: "
                "something between the two hosts changes what they send"
            )
        if hashlib.sha256(data).hexdigest() != sha256:
            raise BootstrapError(
                f"rank {hello.from_rank} handed rank {self.rank} a table of the ranks that is not the one that the "
                f"rendezvous made: look at rank {hello.from_rank} and at the memory of its host"
            )
        return data

    def _hand_to(self, contact: Mapping[str, Any], interface: str, data: bytes) -> None:
        until = self._patience()
        try:
            endpoint = endpoints_of(contact)[0]
            with socket.socket(socket.AF_INET6 if ":" in endpoint.ip else socket.AF_INET) as connection:
                connection.settimeout(max(0.05, until - time.monotonic()))
                connection.connect(sockaddr(endpoint.ip, contact["table_port"], interface))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                hello = Hello(TABLE, self.epoch, self.rank, contact["rank"])
                secret = authenticate(connection, self.key, hello, until)
                send_all(connection, headers(data, RANK, [secret])[0] + data, until)
        except (OSError, BootstrapError) as error:
            _log.info("rank %d could not hand rank %d the table: %s", self.rank, contact["rank"], error)
