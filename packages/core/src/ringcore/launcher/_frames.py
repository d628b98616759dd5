"""Messages between the launcher and its agents: a kind, a rank and bytes, on any byte stream."""

from __future__ import annotations

import dataclasses
import enum
import os
import struct
from collections.abc import Callable, Iterable
from typing import Any

from ringcore.launcher._loop import Loop

HEADER = struct.Struct(">BII")  # kind, rank, bytes that follow
# A job may carry a function with its arguments (ringcore.run); output comes in pieces of 64 KiB.
_LIMIT_BYTES = 1 << 30
_READ_BYTES = 1 << 18
# More than this unsent: the other end is slow, so stop reading what would be sent next.
_CONGESTED_BYTES = 1 << 20
# Sent first by an agent. What a login shell prints before it (a greeting) is skipped up to this many bytes.
MAGIC = b"\0ringcore-agent-1\n"
_GREETING_BYTES = 1 << 16


class Kind(enum.IntEnum):
    """What a frame means. `rank` is 0 where a frame is about the whole host."""

    HELLO = 1  # agent: JSON with its host's name, interpreter and a free port
    JOB = 2  # launcher: JSON of a HostJob
    STDOUT = 3  # agent: bytes that the rank wrote
    STDERR = 4
    RESULT = 5  # agent: bytes from the rank of a ringcore.run
    EXIT = 6  # agent: JSON with the exit code and the error file
    DONE = 7  # agent: no process of the job is left here
    FAILED = 8  # agent: JSON; the job could not be started
    SIGNAL = 9  # launcher: signal number in `rank`
    KILL = 10  # launcher
    PING = 11  # launcher: still here
    NOTE = 12  # agent: text for --verbose
    PLACE = 14  # caller of the launcher: JSON; a scheduler starts the agents, see `_placed`
    WORD = 15  # both ways: bytes between a rank of an elastic job and the launcher, see `elastic`
    ASK = 16  # launcher: a question of somebody who looks at the job; `rank` is its number
    ANSWER = 17  # agent: JSON, see `_watching`; `rank` is the number of the question
    ABANDON = 18  # caller of the launcher: the scheduler does no more for this job
    LEAVE = 19  # launcher: JSON; a node that has come by itself ends with this exit code, and why
    HOLD = 13  # launcher: leave these of the ranks' streams unread; `rank` is a sum of bits, see `hold_bits`


def hold_bits(kinds: Iterable[Kind]) -> int:
    """The streams of a HOLD as a number."""
    return sum(1 << kind for kind in kinds)


def held_kinds(bits: int) -> frozenset[Kind]:
    """The streams that `hold_bits` was given."""
    return frozenset(kind for kind in (Kind.STDOUT, Kind.STDERR) if bits & 1 << kind)


class ProtocolError(Exception):
    """The other end sent something that no launcher or agent sends."""


def table_of(payload: bytes, **types: type | tuple[type, ...]) -> dict[str, Any]:
    """Read what a frame says in JSON: nothing that comes from another process breaks this one.

    Args:
        payload: Of the frame.
        types: What the table must have, and of which types.

    Raises:
        ProtocolError: It is no table, or lacks something.
    """
    import json  # Agents without anything to read need none.

    try:
        said = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the other end sent what is no JSON ({error})") from None
    if not isinstance(said, dict):
        raise ProtocolError(f"the other end sent {type(said).__name__} instead of a table")
    wrong = next((name for name, kind in types.items() if not isinstance(said.get(name), kind)), None)
    if wrong is not None:
        raise ProtocolError(f"the other end sent a table whose {wrong!r} is missing, or of another type")
    return said


class Seal:
    """Proves that frames come from the other end of a connection, in their order: for one that nothing else protects.

    Args:
        secret: Of the connection, which its two ends alone know.
        from_launcher: Which of the two directions.
    """

    SIZE = 32

    def __init__(self, secret: bytes, *, from_launcher: bool) -> None:
        self._secret = secret
        self._label = b"from the launcher" if from_launcher else b"from the agent"
        self._count = 0

    def of(self, frame: bytes) -> bytes:
        """The seal of the next frame."""
        import hmac  # Most launchers need none.

        self._count += 1
        return hmac.digest(self._secret, self._label + self._count.to_bytes(8, "big") + frame, "sha256")

    def check(self, frame: bytes, seal: bytes) -> None:
        """Look at the seal of the next frame, in a time that tells nothing about it.

        Raises:
            ProtocolError: It is another one's.
        """
        import hmac

        if not hmac.compare_digest(self.of(frame), seal):
            raise ProtocolError("what the other end sent was changed on its way")


@dataclasses.dataclass(frozen=True)
class Seals:
    """Those of what is sent and of what comes."""

    sent: Seal
    received: Seal

    @classmethod
    def of_launcher(cls, secret: bytes) -> Seals:
        """For the launcher's end of a connection."""
        return cls(Seal(secret, from_launcher=True), Seal(secret, from_launcher=False))

    @classmethod
    def of_agent(cls, secret: bytes) -> Seals:
        """For the agent's end."""
        return cls(Seal(secret, from_launcher=False), Seal(secret, from_launcher=True))


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self, *, expect_magic: bool = False, seal: Seal | None = None) -> None:
        self._data = bytearray()
        self._expect_magic = expect_magic
        self._seal = seal

    def feed(self, data: bytes) -> list[tuple[Kind, int, bytes]]:
        """Take bytes as they come, and return the frames that are complete.

        Raises:
            ProtocolError: The bytes are no frames.
        """
        self._data += data
        if self._expect_magic and not self._skip_greeting():
            return []
        frames = []
        while len(self._data) >= HEADER.size:
            kind, rank, length = HEADER.unpack_from(self._data)
            if kind not in Kind._value2member_map_ or length > _LIMIT_BYTES:
                raise ProtocolError(f"frame of kind {kind} with {length} bytes")
            end = HEADER.size + length
            sealed = end + (Seal.SIZE if self._seal is not None else 0)
            if len(self._data) < sealed:
                break
            if self._seal is not None:
                self._seal.check(bytes(self._data[:end]), bytes(self._data[end:sealed]))
            frames.append((Kind(kind), rank, bytes(self._data[HEADER.size : end])))
            del self._data[:sealed]
        return frames

    def _skip_greeting(self) -> bool:
        start = self._data.find(MAGIC)
        if start < 0:
            if len(self._data) > _GREETING_BYTES:
                raise ProtocolError("the remote shell prints without end, and no agent answers")
            return False
        del self._data[: start + len(MAGIC)]
        self._expect_magic = False
        return True


class FramePipe:
    """Frames in both directions over two descriptors that never block."""

    def __init__(
        self,
        loop: Loop,
        read_fd: int,
        write_fd: int,
        *,
        on_frame: Callable[[Kind, int, bytes], None],
        on_close: Callable[[str], None],
        expect_magic: bool = False,
        seals: Seals | None = None,
    ) -> None:
        """Start to read.

        Args:
            loop: Calls back when there is something to do.
            read_fd: Where frames come from.
            write_fd: Where frames go to; another descriptor than `read_fd`.
            on_frame: Called with each frame; may raise ProtocolError, which closes it.
            on_close: Called once with the reason when nothing more can come.
            expect_magic: Skip what comes before an agent's magic line.
            seals: Of a connection that nothing else protects.
        """
        self._loop = loop
        self._seals = seals
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._on_frame = on_frame
        self._on_close = on_close
        self._reader = FrameReader(expect_magic=expect_magic, seal=None if seals is None else seals.received)
        self._unsent = bytearray()
        self._open = True
        self.on_drained: Callable[[], None] | None = None
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        loop.on_readable(read_fd, self._read)

    @property
    def congested(self) -> bool:
        """Whether so much is unsent that a source of frames should pause until `on_drained`."""
        return len(self._unsent) > _CONGESTED_BYTES

    @property
    def idle(self) -> bool:
        """Whether everything was sent, or never can be."""
        return not self._unsent

    def send(self, kind: Kind, rank: int = 0, payload: bytes = b"") -> None:
        """Send a frame, now or as soon as the other end takes it; nothing happens after a close."""
        frame = HEADER.pack(kind, rank, len(payload)) + payload
        self.send_raw(frame if self._seals is None or not self._open else frame + self._seals.sent.of(frame))

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are: for the magic line."""
        if not self._open:
            return
        was_idle = self.idle
        self._unsent += data
        if was_idle:
            self._write()
            if not self.idle:
                self._loop.on_writable(self._write_fd, self._write)

    def close(self) -> None:
        """Stop; what is unsent is dropped. The descriptors stay the caller's to close."""
        if self._open:
            self._open = False
            self._unsent.clear()
            self._loop.forget(self._read_fd)
            self._loop.forget(self._write_fd)

    def _fail(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_close(reason)

    def _write(self) -> None:
        was_congested = self.congested
        try:
            while self._unsent:
                with memoryview(self._unsent) as view:
                    sent = os.write(self._write_fd, view[: 1 << 18])
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(f"cannot write: {error.strerror}")
            return
        if self.idle:
            self._loop.forget(self._write_fd)
        if was_congested and not self.congested and self.on_drained is not None:
            self.on_drained()

    def _read(self) -> None:
        try:
            data = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"cannot read: {error.strerror}")
            return
        if not data:
            self._fail("connection closed")
            return
        try:
            for kind, rank, payload in self._reader.feed(data):
                if self._open:
                    self._on_frame(kind, rank, payload)
        except ProtocolError as error:
            self._fail(str(error))
