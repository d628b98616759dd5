"""The timeline: what every rank did, in one file that Perfetto and chrome://tracing read.

While it is recorded each rank writes to a file of its own, from which nothing is lost when the rank is. At the end
rank 0 puts them together.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ringcore._errors import InvalidArgument, ResourceError
from ringcore.job.agreement import gather_bytes, meet
from ringcore.job.state import Context, context

_log = logging.getLogger("ringcore")
# Barriers that the clocks of several hosts are compared at.
_MEETINGS = 9
# What each rank sends at a time when the files are put together.
_PIECE_BYTES = 256 << 10
_BEGIN = b'{"displayTimeUnit":"ns","traceEvents":[\n'
_END = b"\n]}\n"
# How a rank's file begins: see native/runtime/timeline_file.cpp.
_PART_BEGIN = b"[\n"


@dataclass(frozen=True)
class _Recording:
    """What is being recorded.

    Attributes:
        path: The file that rank 0 writes in the end.
        part: This rank's own.
    """

    path: Path
    part: Path


_recording: _Recording | None = None


def start_timeline(path: str | Path) -> None:
    """Start recording on every rank. Collective.

    Each rank writes to a file of its own beside it, `path` with `.rank0` and so on behind (in the folder for temporary
    files where a host has no such folder), which stays where the job ends before `stop_timeline()`.

    Args:
        path: The file that rank 0 writes at `stop_timeline()` or `shutdown()`.

    Raises:
        InvalidArgument: A timeline is being recorded already, or a rank cannot write its file. On every rank.
    """
    global _recording
    if _recording is not None:
        raise InvalidArgument(f"a timeline is being recorded already, to {_recording.path}; call stop_timeline() first")
    current = context()
    path = Path(path).absolute()  # the program may go elsewhere until it is written
    origin_ns = _common_origin(current)
    part = _part_of(path, current.rank)
    problem = _why_not_writable(path) if current.rank == 0 else ""
    if not problem:
        try:
            current.runtime.write_timeline(os.fspath(part), current.rank, origin_ns)
        except ResourceError as error:
            problem = str(error)
    problems = [text.decode() for text in gather_bytes(problem.encode(), current.next_name("timeline.start"))]
    if any(problems):
        current.runtime.stop_timeline()
        _remove(_Recording(path, part))
        rank = next(rank for rank, text in enumerate(problems) if text)
        raise InvalidArgument(
            f"rank {rank} cannot write the timeline: {problems[rank]}. Remedy: name a file in a folder that is there "
            "and may be written"
        )
    _recording = _Recording(path, part)
    _log.info("rank %d: a timeline is being recorded, to %s", current.rank, part)


def _part_of(path: Path, rank: int) -> Path:
    here = rank == 0 or os.access(path.parent, os.W_OK)
    folder = path.parent if here else Path(tempfile.mkdtemp(prefix="ringcore-timeline-"))
    return folder / f"{path.name}.rank{rank}"


def _remove(recording: _Recording) -> None:
    recording.part.unlink(missing_ok=True)
    if recording.part.parent != recording.path.parent:
        recording.part.parent.rmdir()


def _why_not_writable(path: Path) -> str:
    """Empty if it is. What the file holds stays until the timeline is stopped."""
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        return str(error)
    if not existed:
        path.unlink()
    return ""


def _common_origin(current: Context) -> int:
    """The moment that all ranks count from, as this rank's clock says it.

    Ranks of one host share the monotonic clock; another host's is compared with it at barriers.
    """
    meetings = _MEETINGS if len(set(current.host_of)) > 1 else 1
    met = [_meet() for _ in range(meetings)]
    texts = gather_bytes(",".join(map(str, met)).encode(), current.next_name("timeline.clock"))
    clocks = [[int(number) for number in text.split(b",")] for text in texts]
    return origin_of(current.rank, clocks, current.host_of)


def _meet() -> int:
    """This rank's clock at a moment that is about the same on all ranks: the end of a barrier."""
    meet(context().next_name("start_timeline"))
    return time.monotonic_ns()


def origin_of(rank: int, clocks: Sequence[Sequence[int]], host_of: Sequence[int]) -> int:
    """The moment of rank 0's last barrier, by the clock of a rank.

    Args:
        rank: Whose clock.
        clocks: By rank, what its clock said at the end of each barrier: all end within a round trip.
        host_of: By rank; ranks of a host have one clock.
    """
    origin = clocks[0][-1]
    if host_of[rank] == host_of[0]:
        return origin
    differences = sorted(theirs - ours for ours, theirs in zip(clocks[0], clocks[rank], strict=True))
    return origin + differences[len(differences) // 2]


def stop_timeline() -> None:
    """Stop recording; rank 0 writes the file. Collective.

    Raises:
        InvalidArgument: No timeline is being recorded.
        ResourceError: Rank 0 could not write the file. On rank 0. What each rank has recorded is in the ranks' files.
    """
    global _recording
    current = context()
    if _recording is None:
        raise InvalidArgument("no timeline is being recorded; call start_timeline(path) first")
    recording, _recording = _recording, None
    problem = current.runtime.timeline_failure
    current.runtime.stop_timeline()
    if problem:
        _log.warning("rank %d: its timeline %s ends early: %s", current.rank, recording.part, problem)
    whole = _Whole(recording.path if current.rank == 0 else None)
    for pieces in _pieces_of_all(recording.part):
        for piece in filter(None, pieces):
            whole.add(piece)
    whole.close()
    written = not gather_bytes(str(whole.failure or "").encode(), current.next_name("timeline.end"))[0]
    if written:
        _remove(recording)
    if whole.failure is not None:
        raise ResourceError(
            f"the timeline was recorded, but not written: {whole.failure}. Remedy: `ringcore timeline` reads the "
            f"ranks' files, {recording.path}.rank*"
        ) from whole.failure
    if current.rank == 0:
        _log.info("rank 0: the timeline of %d ranks is in %s", current.size, recording.path)


class _Whole:
    """The file of all ranks, on the one that writes it.

    Args:
        path: Of the file; None on the other ranks.
    """

    def __init__(self, path: Path | None) -> None:
        self.failure: OSError | None = None
        self._file: IO[bytes] | None = None
        self._before = _BEGIN  # the last event has no comma behind it
        if path is not None:
            try:
                self._file = path.open("wb", buffering=0)
            except OSError as error:
                self.failure = error

    def add(self, events: bytes) -> None:
        """Write what a rank has sent; after a failure nothing more."""
        self._write(self._before + events)
        self._before = b",\n"

    def close(self) -> None:
        """Write the end."""
        self._write(_END if self._before != _BEGIN else _BEGIN + _END)
        if self._file is not None:
            self._file.close()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while self._file is not None and self.failure is None and view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self.failure = error


def _pieces_of_all(part: Path) -> Iterator[list[bytes]]:
    """What all ranks have recorded, piece by piece: nobody has all of it in memory. Collective."""
    current = context()
    with contextlib.ExitStack() as stack:
        own: IO[bytes] | None = None
        try:
            own = stack.enter_context(part.open("rb"))
            own.seek(len(_PART_BEGIN))
        except OSError as error:
            _log.warning("rank %d: what it has recorded is lost: %s", current.rank, error)
        while any(pieces := gather_bytes(_next_events(own), current.next_name("stop_timeline"))):
            yield pieces


def _next_events(file: IO[bytes] | None) -> bytes:
    """The next events of a rank's file, without the comma behind them; one that a full disk has cut is left out."""
    piece = b"" if file is None else file.read(_PIECE_BYTES)
    if file is not None and piece and not piece.endswith(b"\n"):
        piece += file.readline()
    return piece[: max(piece.rfind(b",\n"), 0)]


def write_pending() -> None:
    """At shutdown: finish a timeline that was not stopped, if all ranks are still there."""
    global _recording
    if _recording is None:
        return
    recording = _recording
    try:
        stop_timeline()
    except Exception as error:  # shutdown must not fail because another rank is gone
        _recording = None
        current = context()
        current.runtime.stop_timeline()
        if current.rank == 0:
            _log.warning(
                "the timeline %s was not written: %s. `ringcore timeline %s` reads what each rank has recorded, in %s "
                "and so on",
                recording.path, error, recording.path, recording.part,
            )  # fmt: skip
