"""Writes plans, rank by rank and step by step, as the generators of the engine do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ringcore import _native
from ringcore._errors import InvalidArgument
from ringcore.planning.plan import Plan
from ringcore.planning.request import Request

_DATA, _INPUT, _SCRATCH = range(3)
_BUFFERS = {"data": _DATA, "input": _INPUT, "scratch": _SCRATCH}


class Point(NamedTuple):
    """A step of a rank, which steps of its other channels may wait for."""

    channel: int
    step: int


class Chunk(NamedTuple):
    """A chunk of the rank's own memory: of "data", "input" (of an alltoall) or "scratch"."""

    chunk: int
    buffer: str = "data"


class Program:
    """What one rank does. A chunk is a number, of its data, or a `Chunk`.

    Each method that appends a step takes `after`: a `Point` that must have taken effect before.
    """

    def __init__(self, plan: _native.Plan, rank: int) -> None:
        self._plan, self.rank = plan, rank
        self._channel = 0

    def channel(self, number: int) -> Program:
        """What is appended from now on goes into this channel; 0 at first. Channels run side by side."""
        self._channel = number
        return self

    def send(self, peer: int, chunk: int | Chunk, *, after: Point | None = None) -> Point:
        """Send a chunk. It returns at once; the chunk is not overwritten before it is sent."""
        return self._append("send", peer, [chunk], [], after=after)

    def recv(self, peer: int, chunk: int, *, after: Point | None = None) -> Point:
        """Replace a chunk by what the peer sends."""
        return self._append("recv", peer, [], [chunk], after=after)

    def recv_scratch(self, peer: int, slot: int, like: int, *, after: Point | None = None) -> Point:
        """Take what the peer sends into a scratch chunk; it is as large as data chunk `like`."""
        return self._append("recv", peer, [like], [Chunk(slot, "scratch")], after=after)

    def recv_reduce(self, peer: int, chunk: int, *, final: bool = False, after: Point | None = None) -> Point:
        """Add what the peer sends to a chunk. `final`: that completes the sum of all ranks."""
        return self._append("recv_reduce", peer, [], [chunk], final=final, after=after)

    def reduce(
        self,
        sources: Sequence[int | Chunk],
        targets: Sequence[int | Chunk],
        *,
        final: bool = False,
        after: Point | None = None,
    ) -> Point:
        """Make every target the sum of the sources, in their order; of one source, a copy."""
        return self._append("reduce", -1, sources, targets, final=final, after=after)

    def _append(
        self,
        kind: str,
        peer: int,
        sources: Sequence[int | Chunk],
        targets: Sequence[int | Chunk],
        *,
        final: bool = False,
        after: Point | None = None,
    ) -> Point:
        channel, step = after or (-1, -1)
        index = self._plan.append(
            self.rank, self._channel, kind, peer, [*map(self._ref, sources)], [*map(self._ref, targets)], final,
            channel, step,
        )  # fmt: skip
        return Point(self._channel, index)

    def _ref(self, chunk: int | Chunk) -> tuple[int, int, int]:
        number, buffer = chunk if isinstance(chunk, Chunk) else (chunk, "data")
        if number < 0 or buffer not in _BUFFERS:
            raise InvalidArgument(
                f"rank {self.rank} has no chunk {chunk!r}: chunks count from 0, in {', '.join(_BUFFERS)}"
            )
        return self.rank, _BUFFERS[buffer], number


class Builder:
    """Writes a plan.

    Args:
        generator: The plan's name, in timelines and messages.
        request: What it is for.
        chunks: Into how many the data is divided; of a collective of blocks (all but allreduce,
            broadcast and reduce) a multiple of the ranks.
        scratch_chunks: That each node needs besides.
        accumulates_once: Every sum is made by one `reduce` of all ranks' values in the ranks' order: 16-bit sums are
            rounded once. Without it the plan is not used for 16-bit floats among more than two ranks.
        serving: So many nodes, numbered behind the ranks, take part and have no data of their own; in a job its
            servers, of which there are `len(request.servers)`.

    Raises:
        InvalidArgument: There is no such plan.
    """

    def __init__(
        self,
        generator: str,
        request: Request,
        chunks: int,
        *,
        scratch_chunks: int = 0,
        accumulates_once: bool = False,
        serving: int = 0,
    ) -> None:
        if request.collective not in _native.COLLECTIVES:
            known = ", ".join(name for name in _native.COLLECTIVES if name != "barrier")
            raise InvalidArgument(f"there is no collective {request.collective!r}; there are: {known}")
        if not generator.isascii() or not generator.isprintable() or set('"\\') & set(generator) or len(generator) > 64:
            raise InvalidArgument(
                f"{generator!r} is no name of a plan; use at most 64 letters of ASCII, without quotes"
            )
        if chunks == 0 and not request.servers:  # what is to be divided among servers, and there are none
            raise InvalidArgument(
                f"the plan {generator!r} has 0 chunks, and was asked for without servers (request.servers is empty). "
                "Remedy: where it divides the data among servers, start the job with `ringrun --servers N`, or return "
                "None where there are none; else give it at least 1 chunk"
            )
        if chunks < 1 or scratch_chunks < 0:
            raise InvalidArgument(f"a plan has at least 1 chunk, not {chunks}, and not {scratch_chunks} of scratch")
        if serving < 0:
            raise InvalidArgument(f"no plan has {serving} nodes that serve; there may be none, 0")
        self._plan = _native.Plan(
            generator, _native.COLLECTIVES[request.collective], request.ranks, serving, request.root, chunks,
            scratch_chunks, accumulates_once,
        )  # fmt: skip
        self._programs = [Program(self._plan, node) for node in range(self._plan.nodes)]

    def __getitem__(self, rank: int) -> Program:
        """The program of a rank, or of who serves behind them, to append to."""
        if not 0 <= rank < len(self._programs):
            raise InvalidArgument(f"the plan has no rank {rank}: it has 0 to {len(self._programs) - 1}")
        return self._programs[rank]

    def plan(self) -> Plan:
        """The plan as it stands."""
        return Plan(self._plan)
