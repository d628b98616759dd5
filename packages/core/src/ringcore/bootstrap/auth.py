"""Both ends of a connection prove that they know the job's key, before anything else is read.

The dialler sends a fixed-size hello with a nonce, the acceptor answers with its own nonce and a proof, the dialler with
its proof, and the acceptor with one byte. A dialler that has it is in; one whose connection ends before dials again.
A proof is HMAC-SHA256 over the role, the hello and both nonces: a recorded or reflected proof fits no other connection.
Both ends then share a secret of this one connection, which TLS goes on from where it is encrypted. Whether it is stands
in the hello, which both proofs cover: nobody in between can talk them out of it.
Source: the challenge-response of RFC 2104 and ISO/IEC 9798-4, mutual authentication in three passes.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from ringcore._errors import BootstrapError
from ringcore.environment.hidden import hidden_room, hide

T = TypeVar("T")

KEY_BYTES = 32
# Of a job, or of those of its ranks who met at the same time: ranks have it in memory that no core file shows.
Key: TypeAlias = "bytes | memoryview"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
# magic, protocol version, purpose, epoch, from rank, to rank, lane, whether it will be encrypted
_HELLO = struct.Struct("<8sHHIIII?")
_MAGIC = b"ringcore"
_VERSION = 3
HELLO_BYTES = _HELLO.size + _NONCE_BYTES
# Until a stranger has proved the key, no more than this is read from it.
MAX_UNAUTHENTICATED_BYTES = HELLO_BYTES + _PROOF_BYTES
_WELCOME = b"+"
# Asked of the kernel at a time: a length is another's word, and there is room for as much as is asked for.
_PIECE_BYTES = 1 << 20
# Whoever is turned away dials again after about so long.
_AGAIN_S = 0.05
TURNED_AWAY = (
    "the other end closes connections before it lets this rank in: too many strangers connect to it, or it is no rank "
    "of this version of ringcore"
)

RENDEZVOUS = 1
MESH = 2
AGENT = 3  # dials the launcher
BOARD = 4
TABLE = 5  # of all contacts


class TurnedAwayError(BootstrapError):
    """The acceptor closed the connection before it let the dialler in: it may have room later."""


class WrongKeyError(BootstrapError):
    """The other end does not know this job's key."""


def key_of_job(secret: Key, job: str) -> Key:
    """The key of one of several jobs that share a secret: their ranks refuse each other."""
    return hide(hmac.digest(secret, job.encode(), "sha256"))


def key_of_round(key: Key, number: str) -> Key:
    """The key of those who met at the same time: who comes again proves another one to who is still there."""
    return hide(hmac.digest(key, b"round " + number.encode(), "sha256"))


def fingerprint(key: Key) -> str:
    """What people can compare of two keys without showing them."""
    return hmac.digest(key, b"fingerprint", "sha256")[:4].hex()


@dataclass(frozen=True)
class Hello:
    """What a connection is for."""

    purpose: int
    epoch: int
    from_rank: int
    to_rank: int
    lane: int = 0
    encrypted: bool = False

    def pack(self) -> bytes:
        """The fixed-size form."""
        return _HELLO.pack(
            _MAGIC, _VERSION, self.purpose, self.epoch, self.from_rank, self.to_rank, self.lane, self.encrypted
        )


def _proof(key: Key, role: bytes, hello: bytes, answer_nonce: bytes) -> bytes:
    return hmac.digest(key, role + hello + answer_nonce, "sha256")


def _secret_of(key: Key, hello: bytes, answer_nonce: bytes) -> bytes:
    """The secret of one connection, 32 bytes. Source: HKDF of RFC 5869 with SHA-256, of one block."""
    pseudorandom_key = hmac.digest(hello[_HELLO.size :] + answer_nonce, key, "sha256")
    return hmac.digest(pseudorandom_key, b"ringcore connection" + hello[: _HELLO.size] + b"\x01", "sha256")


class Acceptance:
    """The acceptor's side as a state machine: feed it what arrives, send what it says."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._received = b""
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._answered = False
        self.hello: Hello | None = None
        self.secret = b""

    def wanted_bytes(self) -> int:
        """How many bytes to read next at most."""
        total = MAX_UNAUTHENTICATED_BYTES if self._answered else HELLO_BYTES
        return total - len(self._received)

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the dialler; returns bytes to send back.

        `hello` and `secret` are set once the dialler is authenticated.

        Raises:
            BootstrapError: It is not a rank of this job.
        """
        self._received += data
        hello = self._received[:HELLO_BYTES]
        if not self._answered:
            # Garbage is refused as early as it shows.
            if not _MAGIC.startswith(hello[: len(_MAGIC)]):
                raise BootstrapError("what came is not ringcore's greeting")
            if len(hello) < HELLO_BYTES:
                return b""
            magic, version, *_ = _HELLO.unpack(hello[: _HELLO.size])
            if magic != _MAGIC or version != _VERSION:
                raise BootstrapError(f"it speaks version {version} of the handshake, this rank {_VERSION}")
            self._answered = True
            return self._nonce + _proof(self._key, b"acceptor", hello, self._nonce)
        if len(self._received) < MAX_UNAUTHENTICATED_BYTES:
            return b""
        if not hmac.compare_digest(self._received[HELLO_BYTES:], _proof(self._key, b"dialler", hello, self._nonce)):
            raise BootstrapError("it does not know the job's key")
        _, _, purpose, epoch, from_rank, to_rank, lane, encrypted = _HELLO.unpack(hello[: _HELLO.size])
        self.secret = _secret_of(self._key, hello, self._nonce)
        self.hello = Hello(purpose, epoch, from_rank, to_rank, lane, encrypted)
        return _WELCOME


class Introduction:
    """The dialler's side as a state machine: send the `greeting`, then feed it what arrives, and send what it says."""

    def __init__(self, key: Key, hello: Hello) -> None:
        self._key = key
        self._hello = hello
        self.greeting = hello.pack() + secrets.token_bytes(_NONCE_BYTES)
        self._received = b""
        self._answered = False
        self._secret = b""
        self.secret = b""

    def wanted_bytes(self) -> int:
        """How many bytes to read next at most: what comes behind the handshake stays in the connection."""
        total = _NONCE_BYTES + _PROOF_BYTES + (len(_WELCOME) if self._answered else 0)
        return total - len(self._received)

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the acceptor; returns bytes to send back.

        `secret` is set once the acceptor is authenticated and has let this rank in.

        Raises:
            WrongKeyError: It does not know the key.
        """
        self._received += data
        if self.wanted_bytes() > 0:
            return b""
        if self._answered:
            self.secret = self._secret
            return b""
        nonce, proof = self._received[:_NONCE_BYTES], self._received[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(self._key, b"acceptor", self.greeting, nonce)):
            hello = self._hello
            who = "the other end"
            if hello.purpose == MESH:
                who = f"what answers rank {hello.from_rank} as rank {hello.to_rank}"
            raise WrongKeyError(
                f"{who} does not know this job's key, whose fingerprint is {fingerprint(self._key)} here; are two jobs "
                "using the same address, do the ranks have different RINGCORE_KEY_FILEs, or does something between the "
                "two change what they send?"
            )
        self._answered = True
        self._secret = _secret_of(self._key, self.greeting, nonce)
        return _proof(self._key, b"dialler", self.greeting, nonce)


def authenticate(connection: socket.socket, key: Key, hello: Hello, deadline: float) -> bytes:
    """The dialler's side, blocking.

    Args:
        connection: Connected to the acceptor.
        key: The job's key, 32 bytes.
        hello: What the connection is for.
        deadline: By `time.monotonic()`.

    Returns:
        The secret of this connection, 32 bytes, which nobody but the two ends knows.

    Raises:
        TurnedAwayError: The acceptor closed the connection: dial again.
        WrongKeyError: The acceptor does not know the key.
        BootstrapError: It did not answer in time.
    """
    introduction = Introduction(key, hello)
    try:
        send_all(connection, introduction.greeting, deadline)
        while not introduction.secret:
            answer = introduction.feed(receive_exactly(connection, introduction.wanted_bytes(), deadline))
            if answer:
                send_all(connection, answer, deadline)
    except ConnectionClosedError as error:
        raise TurnedAwayError(TURNED_AWAY) from error
    return introduction.secret


def pause_before_next() -> float:
    """Seconds: not all of those that were turned away at the same time come back at the same time."""
    return _AGAIN_S * (0.5 + secrets.randbelow(1000) / 1000)


def until_let_in(dial: Callable[[], T], deadline: float) -> T:
    """Dial until the acceptor has room.

    Args:
        dial: Connects and authenticates.
        deadline: By `time.monotonic()`.

    Returns:
        What `dial` returned.

    Raises:
        TurnedAwayError: There was no room up to the deadline.
    """
    while True:
        try:
            return dial()
        except TurnedAwayError:
            pause_s = pause_before_next()
            if time.monotonic() + pause_s > deadline:
                raise
            time.sleep(pause_s)


class ConnectionClosedError(BootstrapError):
    """The other end has closed the connection, in order or not."""


def send_all(connection: socket.socket, data: bytes, deadline: float) -> None:
    """Send everything before the deadline."""
    connection.settimeout(_left(deadline))
    try:
        connection.sendall(data)
    except OSError as error:
        raise _broken(error, "sending") from error


def receive_exactly(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Receive `count` bytes before the deadline."""
    data, room = bytearray(), memoryview(bytearray(min(count, _PIECE_BYTES)))
    while len(data) < count:
        data += room[: _receive(connection, room[: count - len(data)], deadline)]
    return bytes(data)


def receive_key(connection: socket.socket, deadline: float) -> Key:
    """The key, as a Unix socket of this user gives it."""
    room = hidden_room(KEY_BYTES)
    received = 0
    while received < KEY_BYTES:
        received += _receive(connection, room[received:], deadline)
    return room.toreadonly()


def _receive(connection: socket.socket, room: bytearray | memoryview, deadline: float) -> int:
    connection.settimeout(_left(deadline))
    try:
        count = connection.recv_into(room)
    except OSError as error:
        raise _broken(error, "receiving") from error
    if count == 0:
        raise ConnectionClosedError("the other end closed the connection")
    return count


def _broken(error: OSError, doing: str) -> BootstrapError:
    kind = ConnectionClosedError if isinstance(error, ConnectionError) else BootstrapError
    return kind(f"the connection broke while {doing}: {error}")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise BootstrapError("no answer came in time")
    return left
