"""The messages between the launcher and its agents: cut anywhere, bounded, and with back pressure."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest
from ringcore.launcher._frames import MAGIC, FramePipe, FrameReader, Kind, ProtocolError
from ringcore.launcher._loop import Loop

HEADER = struct.Struct(">BII")
FRAMES = [(Kind.STDOUT, 3, b"abc"), (Kind.EXIT, 0, b""), (Kind.STDERR, 4_000_000_000, bytes(range(256)))]
BYTES = b"".join(HEADER.pack(kind, rank, len(data)) + data for kind, rank, data in FRAMES)


@pytest.mark.parametrize("piece", [1, 2, 7, 9, 10, 1000])
def test_frames_may_be_cut_anywhere(piece: int) -> None:
    reader = FrameReader(expect_magic=True)
    stream = b"Last login: today\n" + MAGIC + BYTES
    found = [frame for start in range(0, len(stream), piece) for frame in reader.feed(stream[start : start + piece])]
    assert found == FRAMES


@pytest.mark.parametrize("header", [HEADER.pack(99, 0, 0), HEADER.pack(Kind.STDOUT, 0, (1 << 30) + 1)])
def test_what_is_no_frame_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError, match="frame of kind"):
        FrameReader().feed(header)


def test_a_shell_that_prints_without_end_is_refused() -> None:
    reader = FrameReader(expect_magic=True)
    with pytest.raises(ProtocolError, match="no agent answers"):
        for _ in range(100):
            reader.feed(b"x" * 1000)


class Pair:
    """Two pipes that talk to each other."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.frames: list[tuple[Kind, int, bytes]] = []
        self.closed: list[str] = []
        self.pipe = os.pipe()
        self.back = os.pipe()
        self.sender = FramePipe(
            self.loop, self.back[0], self.pipe[1], on_frame=lambda *_: None, on_close=self.closed.append
        )

    def receive(self) -> FramePipe:
        return FramePipe(
            self.loop,
            self.pipe[0],
            self.back[1],
            on_frame=lambda *frame: self.frames.append(frame),
            on_close=self.closed.append,
        )


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    for fd in (*made.pipe, *made.back):
        os.close(fd)


def test_a_slow_reader_is_noticed_and_everything_arrives_in_order(pair: Pair) -> None:
    drained: list[bool] = []
    pair.sender.on_drained = lambda: drained.append(True)
    count = 0
    while not pair.sender.congested:
        pair.sender.send(Kind.STDOUT, count, b"x" * 10_000)
        count += 1
    assert count > 100 and not drained
    pair.receive()
    while not pair.sender.idle or len(pair.frames) < count:
        pair.loop.run_once()
    assert [rank for _, rank, _ in pair.frames] == list(range(count))
    assert drained == [True]


def test_the_end_of_the_other_side_is_told_once(pair: Pair) -> None:
    os.close(pair.back[1])
    pair.loop.run_once()
    assert pair.closed == ["connection closed"]
    pair.sender.send(Kind.PING)
    assert pair.sender.idle
    pair.back = os.pipe()


def test_garbage_closes_the_pipe(pair: Pair) -> None:
    pair.receive()
    os.write(pair.pipe[1], b"\xff" * 100)
    pair.loop.run_once()
    assert len(pair.closed) == 1 and "frame of kind 255" in pair.closed[0]
