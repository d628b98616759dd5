"""Where the ranks of a job meet: each posts how it can be reached, and gets everybody's answer, or rank 0 does.

Rounds: when every rank has posted, all of them get the table, and the next posts begin the next round; its number is
the epoch of the connections made in it. Of an elastic job the launcher announces each round and its size.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from ringcore._closing import Closing
from ringcore._errors import BootstrapError
from ringcore.bootstrap.acceptor import MAX_PENDING, Acceptor
from ringcore.bootstrap.auth import KEY_BYTES, RENDEZVOUS, Hello, Key, fingerprint
from ringcore.bootstrap.contacts import (
    ASKED,
    HEADER,
    MAX_CONTACT_BYTES,
    RANK,
    SERVER,
    ContactError,
    are_handed,
    encode_answer,
    headers,
    is_genuine,
    parse_contact,
)
from ringcore.bootstrap.sockets import format_address, listen_tcp, listen_unix, reserve_descriptors

# A server that stops lets those read who have an answer coming.
_LAST_ANSWERS_S = 2.0
# Addresses in an error.
_SHOWN = 8


@dataclass(eq=False)
class _Guest:
    """A process that has proved the key: it sends its contact, waits for the others, and takes the answer."""

    connection: socket.socket
    secret: bytes
    said: int  # its rank, as its hello has it
    received: bytearray = field(default_factory=bytearray)
    rank: int | None = None
    unsent_header: bytes = b""
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    table: bytes = b""  # Another rank is to hand it this; until then it may ask for it here.
    asks_until: float = 0.0


class RendezvousServer(Closing):
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
        key: Key,
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
        with contextlib.suppress(BootstrapError):  # There will be room for fewer strangers at a time.
            reserve_descriptors(size + MAX_PENDING, f"a rendezvous of {size} ranks")
        self._listener = listen_unix(path) if path is not None else listen_tcp(host, port)
        self.address = f"unix:{path}" if path is not None else f"tcp:{format_address(self._listener.getsockname())}"
        self._contacts: dict[int, dict[str, Any]] = {}
        self._waiting: dict[int, _Guest] = {}
        self._guests: set[_Guest] = set()
        self._answering: set[_Guest] = set()
        self._epoch = 1
        self._round_began = 0.0
        self._patience_s = 0.0
        self._rounds_answered = 0
        self._rounds_served = 0
        self._stop_read, self._stop_write = os.pipe()
        self._served = threading.Condition()  # Guards: _rounds_served, _announced, _ended.
        self._announced: tuple[int, int] | None = None
        self._ended: set[int] = set()
        self._thread = threading.Thread(target=self._serve, name="ringcore-rendezvous", daemon=True)
        self._thread.start()

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

    def announce(self, epoch: int, size: int) -> None:
        """Let so many ranks meet next, and none of an earlier epoch any more: those that wait are told so."""
        with self._served:
            self._announced = epoch, size
        os.write(self._stop_write, b"!")

    def note_ended(self, rank: int) -> None:
        """A rank has ended with exit status 0, and nobody comes in its place: whoever waits for it is told so."""
        with self._served:
            self._ended.add(rank)
        if self._stop_write >= 0:
            os.write(self._stop_write, b"!")

    def posted(self) -> list[int]:
        """The ranks that have come in this round and wait for the others."""
        return sorted(self._contacts)

    def _serve(self) -> None:
        gift = self._key if self._path is not None else b""
        self._acceptor = acceptor = Acceptor([self._listener], self._key, self._accepted, gift)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stop_read, selectors.EVENT_READ)
        self._selector.register(acceptor.fileno(), selectors.EVENT_READ)
        try:
            while not self._stopped(0.25):
                acceptor.service(0)
                self._check_missing()
                self._check_handed()
            self._selector.unregister(self._stop_read)
            deadline = time.monotonic() + _LAST_ANSWERS_S
            while self._answering and time.monotonic() < deadline:
                self._stopped(0.05)
        finally:
            acceptor.close()
            for guest in self._guests:
                guest.connection.close()
            self._selector.close()
            os.close(self._stop_read)

    def _stopped(self, limit_s: float) -> bool:
        """Deals with what the guests send and take; true when the server is to stop."""
        for key, _ in self._selector.select(limit_s):
            if key.fd == self._stop_read:
                if not os.read(self._stop_read, 4096):
                    return True
                self._turn()
                self._check_ended()
                continue
            guest: _Guest | None = key.data
            if guest is None or guest not in self._guests:
                continue
            if guest.unsent:
                self._send(guest)
            elif guest.table:
                self._hand(guest)
            elif guest.rank is not None:
                self._forget(guest, guest.rank)
            else:
                self._read(guest)
        return False

    def _turn(self) -> None:
        """Begins the round that was announced."""
        with self._served:
            announced, self._announced = self._announced, None
        if announced is not None:
            self._fail("another rank has ended before all had met")
            self._epoch, self._size = announced

    # What guests send.

    def _accepted(self, connection: socket.socket, hello: Hello, secret: bytes) -> None:
        if hello.purpose != RENDEZVOUS:
            connection.close()
            return
        guest = _Guest(connection, secret, hello.from_rank)
        self._guests.add(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)

    def _read(self, guest: _Guest) -> None:
        try:
            data = guest.connection.recv(MAX_CONTACT_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        guest.received += data
        received = guest.received
        if len(received) >= HEADER.size:
            length, _ = HEADER.unpack_from(received)
            if length > MAX_CONTACT_BYTES:  # No rank sends it.
                self._drop(guest)
                return
            if len(received) >= HEADER.size + length:
                self._take(guest, bytes(received[: HEADER.size]), bytes(received[HEADER.size :]))
                return
        if not data:
            self._drop(guest)

    def _take(self, guest: _Guest, header: bytes, data: bytes) -> None:
        if not is_genuine(header, data, RANK, guest.secret):
            self._refuse(
                guest,
                f"what rank {guest.said} sent to the rendezvous was changed on its way: something between the two "
                "hosts changes what they send",
            )
            return
        try:
            contact = parse_contact(data)
        except ContactError as error:
            self._refuse(guest, f"the contact of a rank cannot be read: {error}")
            return
        self._post(guest, contact)

    def _forget(self, guest: _Guest, rank: int) -> None:
        """A waiting rank says nothing more: it has gone, and another process may come in its place."""
        del self._waiting[rank]
        del self._contacts[rank]
        self._drop(guest)

    def _drop(self, guest: _Guest) -> None:
        self._guests.discard(guest)
        self._answering.discard(guest)
        self._selector.unregister(guest.connection)
        guest.connection.close()
        if not self._answering and self._rounds_served < self._rounds_answered:
            with self._served:
                self._rounds_served = self._rounds_answered
                self._served.notify_all()

    def _post(self, guest: _Guest, contact: dict[str, Any]) -> None:
        self._turn()
        if contact.get("epoch", self._epoch) != self._epoch:
            self._refuse(guest, f"the ranks of epoch {contact['epoch']} meet no more")
            return
        other_job = self._other_job(contact)
        if other_job is not None:
            self._refuse(guest, other_job)
            return
        problem = self._problem(contact)
        if problem is not None:
            self._refuse(guest, problem)
            self._fail(problem)
            return
        self._limit_round(contact)
        guest.rank = contact["rank"]
        self._contacts[contact["rank"]] = contact
        self._waiting[contact["rank"]] = guest
        if len(self._contacts) == self._size:
            self._rounds_answered += 1
            self._tell_contacts()
            self._epoch += 1
        self._check_ended()

    def _other_job(self, contact: dict[str, Any]) -> str | None:
        """What to tell a rank of another job that has the same key and comes to the same address."""
        job = contact.get("job") or ""
        here = self._job
        if here is None:
            here = next((known.get("job") or "" for known in self._contacts.values()), job)
        if job == here:
            return None
        self._refused = f"; refused was rank {contact['rank']} of {_called(job)}"
        return (
            f"the ranks of {_called(here)} meet at {self.address}, and rank {contact['rank']} is of "
            f"{_called(job)}: give each job a rendezvous of its own, and all ranks of one job the same RINGCORE_JOB_ID"
        )

    def _problem(self, contact: dict[str, Any]) -> str | None:
        rank, size, version = contact["rank"], contact["size"], contact["version"]
        if size != self._size:
            return f"rank {rank} believes that the job has {size} ranks, but it was started with {self._size}"
        if not 0 <= rank < self._size:
            return f"there is no rank {rank} in a job of {self._size} ranks"
        if rank in self._contacts:
            return (
                f"two processes say that they are rank {rank}; start each rank once, or give the processes different "
                "ranks (is a launcher missing whose variables ringcore reads? see `ringcore env`)"
            )
        # All that are there have the same.
        other = next(iter(self._contacts), None)
        if other is not None and self._contacts[other]["version"] != version:
            return (
                f"rank {other} runs ringcore {self._contacts[other]['version']}, rank {rank} runs {version}; install "
                "the same version on all hosts"
            )
        return None

    # What they are told.

    def _limit_round(self, contact: dict[str, Any]) -> None:
        if contact.get("serves"):
            return  # It waits until ranks want it.
        patience_s = float(contact["start_timeout_s"])
        if not self._ranks_wait():
            self._round_began, self._patience_s = time.monotonic(), patience_s
        self._patience_s = min(self._patience_s, patience_s)

    def _ranks_wait(self) -> bool:
        return any(not contact.get("serves") for contact in self._contacts.values())

    def _check_ended(self) -> None:
        """Nobody waits for a rank that cannot come any more."""
        with self._served:
            ended = sorted(self._ended - self._contacts.keys())
        if ended and self._ranks_wait():
            who = f"ranks {ended} have" if len(ended) > 1 else f"rank {ended[0]} has"
            self._fail(
                f"{who} ended with exit status 0 before calling init(){' again' * bool(self._rounds_answered)}, while "
                "others wait there for all. Remedy: call init() on all ranks, or start fewer (ringrun -np)",
                missing=ended,
            )

    def _check_missing(self) -> None:
        if not self._ranks_wait() or time.monotonic() - self._round_began <= self._patience_s:
            return
        missing = [rank for rank in range(self._size) if rank not in self._contacts]
        strangers = self._acceptor.refused
        if strangers and not self._refused:
            self._refused = (
                f"; connections from {', '.join(strangers[:_SHOWN])} were refused: is the fingerprint of their job's "
                f"key {fingerprint(self._key)}, as on {socket.gethostname()}?"
            )
        self._fail(
            f"ranks {missing} did not come within {self._patience_s:g} s; look at their output, and raise "
            f"RINGCORE_START_TIMEOUT_S if they only start slowly{self._refused}",
            missing=missing,
        )

    def _check_handed(self) -> None:
        """Whoever hangs and does not take the table is not waited for: the patience of the others ends."""
        now = time.monotonic()
        for guest in [guest for guest in self._answering if guest.table and now > guest.asks_until]:
            self._drop(guest)

    def _refuse(self, guest: _Guest, problem: str) -> None:
        """Tells one that it cannot take part."""
        self._answer([guest], encode_answer({"error": problem}))

    def _fail(self, problem: str, **more: Any) -> None:
        self._answer_all({"error": problem, **more})

    def _tell_contacts(self) -> None:
        contacts = [self._contacts[rank] for rank in range(self._size)]
        guests = [self._waiting[rank] for rank in range(self._size)]
        met = {"epoch": self._epoch, "round": secrets.token_hex(16)}
        table = encode_answer({**met, "contacts": contacts})
        told = 1 if are_handed(contacts) else len(guests)
        for guest in guests[told:]:
            guest.table, guest.asks_until = table, self._round_began + self._patience_s
        self._waiting.clear()
        self._contacts.clear()
        self._answer(guests[told:], encode_answer({**met, "table_sha256": hashlib.sha256(table).hexdigest()}))
        self._answer(guests[:told], table)

    def _answer_all(self, message: dict[str, Any]) -> None:
        waiting = list(self._waiting.values())
        self._waiting.clear()
        self._contacts.clear()
        self._answer(waiting, encode_answer(message))

    def _hand(self, guest: _Guest) -> None:
        """A rank that was told the table's digest asks for the table, or has been handed it and goes."""
        try:
            asked = guest.connection.recv(len(ASKED))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            asked = b""
        table, guest.table = guest.table, b""
        if asked:
            self._answer([guest], table)
        else:
            self._drop(guest)

    def _answer(self, guests: list[_Guest], data: bytes) -> None:
        self._answering.update(guests)  # Before the first has it all: then none is missing.
        own = headers(data, SERVER, [guest.secret for guest in guests])
        for guest, header in zip(guests, own, strict=True):
            guest.unsent_header, guest.unsent = header, memoryview(data)
            self._selector.modify(guest.connection, selectors.EVENT_WRITE, guest)
            self._send(guest)

    def _send(self, guest: _Guest) -> None:
        try:
            if guest.unsent_header:
                guest.unsent_header = guest.unsent_header[guest.connection.send(guest.unsent_header) :]
            if not guest.unsent_header:
                guest.unsent = guest.unsent[guest.connection.send(guest.unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            guest.unsent, guest.table = memoryview(b""), b""  # It is gone; the others hear of it when they dial it.
        if guest.unsent:
            return
        if guest.table:
            self._selector.modify(guest.connection, selectors.EVENT_READ, guest)
        else:
            self._drop(guest)


def _called(job: str | None) -> str:
    return f"job {job!r}" if job else "a job without a name"
