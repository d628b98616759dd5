"""Reads the XML that the tools of MSCCL write, so that schedules that were published run here.

The format is what https://github.com/microsoft/msccl-tools writes (msccl/language/ir.py): an `algo` of `gpu`s with
threadblocks `tb` of `step`s. A threadblock becomes a channel, a dependence on another one (`depid`, `deps`) becomes
`after`; `inplace="1"` says that the buffers i and o are one.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ringcore import _native
from ringcore._errors import InvalidArgument

_COLLECTIVES = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "alltoall": "alltoall",
}
_DATA, _INPUT, _SCRATCH = range(3)
# By type of step: whether it receives, and how; whether it sends then.
_TYPES = {
    "s": (None, True),
    "r": ("recv", False),
    "rcs": ("recv", True),
    "rrc": ("recv_reduce", False),
    "rrs": ("recv_reduce", True),
    "rrcs": ("recv_reduce", True),
    "cpy": ("copy", False),
    "re": ("reduce", False),
    "nop": (None, False),
}
_MOST_BYTES = 64 << 20
_MOST_NUMBER = 1 << 20

_Cell = tuple[int, int]  # buffer, chunk


@dataclass
class _Step:
    kind: str
    peer: int
    sources: list[_Cell]
    targets: list[_Cell]
    after: tuple[int, int] | None  # threadblock, its step
    final: bool = False


@dataclass
class _Block:
    """A threadblock: its steps, and which of them is the last one of each step of the XML."""

    steps: list[_Step] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


def parse_msccl(data: bytes) -> _native.Plan:
    """Read a plan.

    Raises:
        InvalidArgument: It is no such XML, or uses what plans do not have; the message says where and what to do.
    """
    if len(data) > _MOST_BYTES:
        raise InvalidArgument(f"the XML has {len(data)} bytes; {_MOST_BYTES} are read at most")
    if b"<!" in data.replace(b"<!--", b""):
        raise InvalidArgument("the XML declares a document type or entities, which MSCCL's has none of; take them out")
    try:
        algo = ET.fromstring(data)  # noqa: S314 - without a document type there are no entities to expand
    except ET.ParseError as error:
        raise InvalidArgument(f"the XML cannot be read: {error}") from None
    if algo.tag != "algo":
        raise InvalidArgument(f"the XML begins with {algo.tag!r}, and MSCCL's begins with 'algo'")
    return _Reader(algo).plan()


class _Reader:
    def __init__(self, algo: ET.Element) -> None:
        self._name = re.sub(r'[^ -~]|["\\]', "_", algo.get("name") or "msccl")[:64]
        coll = algo.get("coll", "")
        if coll not in _COLLECTIVES:
            raise InvalidArgument(
                f"the algo's 'coll' is {coll!r}; those that can be read are {', '.join(_COLLECTIVES)}"
            )
        self._collective = _COLLECTIVES[coll]
        if self._collective != "alltoall" and algo.get("inplace") != "1":
            raise InvalidArgument('the algo is not in place; compile it with instances in place (inplace="1")')
        self._gpus = sorted(algo.findall("gpu"), key=lambda gpu: _number(gpu, "id", "a gpu"))
        if [_number(gpu, "id", "a gpu") for gpu in self._gpus] != list(range(len(self._gpus))) or len(self._gpus) < 2:
            raise InvalidArgument("the algo's gpus are not numbered from 0 on, at least two, each once")
        kept = "o_chunks" if self._collective in ("allgather", "alltoall") else "i_chunks"
        sizes = [max(_number(gpu, key, "a gpu") for key in {kept, "i_chunks"}) for gpu in self._gpus]
        self._chunks = max(1, *sizes)
        self._own = [_number(gpu, "i_chunks", "a gpu") for gpu in self._gpus]
        self._scratch = max(_number(gpu, "s_chunks", "a gpu") for gpu in self._gpus)
        self._blocks = [self._read_gpu(rank, gpu) for rank, gpu in enumerate(self._gpus)]

    def plan(self) -> _native.Plan:
        _mark_final(self._blocks, self._collective)
        code = _native.COLLECTIVES[self._collective]
        native = _native.Plan(self._name, code, len(self._blocks), 0, 0, self._chunks, self._scratch, False)
        for rank, blocks in enumerate(self._blocks):
            for channel, block in enumerate(blocks):
                for step in block.steps:
                    after = (-1, -1) if step.after is None else self._point(rank, step.after)
                    sources = [(rank, *cell) for cell in step.sources]
                    targets = [(rank, *cell) for cell in step.targets]
                    kind = "reduce" if step.kind == "copy" else step.kind
                    native.append(rank, channel, kind, step.peer, sources, targets, step.final, *after)
        return native

    def _point(self, rank: int, after: tuple[int, int]) -> tuple[int, int]:
        block, step = after
        blocks = self._blocks[rank]
        if block >= len(blocks) or step >= len(blocks[block].ends) or blocks[block].ends[step] < 0:
            raise InvalidArgument(f"gpu {rank}: a step waits for step {step} of threadblock {block}, which is none")
        return block, blocks[block].ends[step]

    def _read_gpu(self, rank: int, gpu: ET.Element) -> list[_Block]:
        blocks = sorted(gpu.findall("tb"), key=lambda block: _number(block, "id", f"gpu {rank}: a tb"))
        if [_number(block, "id", "a tb") for block in blocks] != list(range(len(blocks))):
            raise InvalidArgument(f"gpu {rank}: its threadblocks are not numbered from 0 on, each once")
        for way in ("send", "recv"):
            peers = [peer for peer in (_number(block, way, "a tb", -1) for block in blocks) if peer >= 0]
            double = next((peer for peer in peers if peers.count(peer) > 1), None)
            if double is not None:
                raise InvalidArgument(
                    f"gpu {rank}: two threadblocks {way} with gpu {double}; two ranks have one stream here: "
                    "compile the algo with one channel and one instance"
                )
        return [self._read_block(rank, block) for block in blocks]

    def _read_block(self, rank: int, element: ET.Element) -> _Block:
        where = f"gpu {rank}, tb {element.get('id')}"
        send, recv = (_number(element, way, where, -1) for way in ("send", "recv"))
        block = _Block()
        waits: tuple[int, int] | None = None
        for number, step in enumerate(element.findall("step")):
            place = f"{where}, step {number}"
            if _number(step, "s", place) != number:
                raise InvalidArgument(f"{place}: its 's' is {step.get('s')!r}; steps are numbered from 0 on")
            kind = step.get("type", "")
            if kind not in _TYPES:
                raise InvalidArgument(f"{place}: its type is {kind!r}; those that can be read are {', '.join(_TYPES)}")
            dependence = _number(step, "depid", place, -1), _number(step, "deps", place, -1)
            if dependence[0] >= 0:
                if waits is not None:
                    raise InvalidArgument(
                        f"{place}: it waits for two steps, and a step of a plan waits for one; see 'nop'"
                    )
                waits = dependence[0], max(0, dependence[1])
            new = [] if kind == "nop" else self._steps(rank, step, kind, send, recv, place)
            if new:
                new[0].after, waits = waits, None
                block.steps += new
            block.ends.append(len(block.steps) - 1)
        return block

    def _steps(self, rank: int, step: ET.Element, kind: str, send: int, recv: int, place: str) -> list[_Step]:
        arrives, sends = _TYPES[kind]
        if (sends and send < 0) or (arrives in ("recv", "recv_reduce") and recv < 0):
            raise InvalidArgument(f"{place}: it needs a peer, and its threadblock names none")
        steps = []
        for index in range(max(1, _number(step, "cnt", place, 1))):
            source = self._cell(rank, step, "src", index, place) if kind in ("s", "cpy", "re") else None
            target = self._cell(rank, step, "dst", index, place) if kind != "s" else None
            if arrives in ("recv", "recv_reduce") and target is not None:
                like = [(_DATA, target[1] % self._chunks)] if arrives == "recv" and target[0] == _SCRATCH else []
                steps.append(_Step(arrives, recv, like, [target], None))
            elif arrives == "copy" and self._is_own_block(rank, source, target):
                continue
            elif arrives is not None and source is not None and target is not None:
                steps.append(_Step(arrives, -1, [source] if arrives == "copy" else [target, source], [target], None))
            leaves = source or target
            if sends and leaves is not None:
                steps.append(_Step("send", send, [leaves], [], None))
        return steps

    def _is_own_block(self, rank: int, source: _Cell | None, target: _Cell | None) -> bool:
        """Whether it is a copy of what a rank gives itself in an alltoall: no plan need do that."""
        if self._collective != "alltoall" or source is None or target is None:
            return False
        own = target[1] // max(1, self._chunks // len(self._gpus)) == rank
        return own and source == (_INPUT, target[1]) and target[0] == _DATA

    def _cell(self, rank: int, step: ET.Element, end: str, index: int, place: str) -> _Cell:
        buffer, offset = step.get(f"{end}buf"), _number(step, f"{end}off", place) + index
        if buffer == "s":
            return _SCRATCH, offset
        if buffer == "i" and self._collective == "alltoall":
            return _INPUT, offset
        if buffer == "i" and self._collective == "allgather":
            return _DATA, rank * self._own[rank] + offset
        if buffer == "o" and self._collective == "reducescatter":
            return _DATA, rank * (self._chunks // len(self._gpus)) + offset
        if buffer in ("i", "o"):
            return _DATA, offset
        raise InvalidArgument(f"{place}: its {end}buf is {buffer!r}; it is i, o or s")


def _number(element: ET.Element, key: str, where: str, default: int | None = None) -> int:
    """-1 says that there is none: only where that can be."""
    text = element.get(key)
    if text is None and default is not None:
        return default
    least = -1 if default == -1 else 0
    if text is None or re.fullmatch(r"-?[0-9]{1,7}", text, re.ASCII) is None or not least <= int(text) <= _MOST_NUMBER:
        raise InvalidArgument(f"{where}: its {key!r} is {text!r}; it is a whole number from {least} to {_MOST_NUMBER}")
    return int(text)


def _mark_final(programs: list[list[_Block]], collective: str) -> None:
    """Find the steps that complete a sum, by carrying out all of them: XML does not say it."""
    if collective not in ("allreduce", "reducescatter"):
        return
    everybody = (1 << len(programs)) - 1
    cells: list[dict[_Cell, int]] = [{} for _ in programs]  # the ranks whose values are in it, as bits; else its own
    streams: dict[tuple[int, int], deque[int]] = {}
    ended: list[list[int]] = [[0] * len(blocks) for blocks in programs]

    def value(rank: int, cell: _Cell) -> int:
        return cells[rank].get(cell, 1 << rank if cell[0] == _DATA else 0)

    def run(rank: int, step: _Step) -> bool:
        if step.kind == "send":
            streams.setdefault((rank, step.peer), deque()).append(value(rank, step.sources[0]))
            return True
        if step.kind in ("recv", "recv_reduce"):
            stream = streams.get((step.peer, rank))
            if not stream:
                return False
            came = stream.popleft()
            total = came | value(rank, step.targets[0]) if step.kind == "recv_reduce" else came
        else:
            total = 0
            for source in step.sources:
                total |= value(rank, source)
        step.final = step.kind in ("recv_reduce", "reduce") and total == everybody
        cells[rank][step.targets[0]] = total
        return True

    _carry_out(programs, ended, run)


def _carry_out(programs: list[list[_Block]], ended: list[list[int]], run: Callable[[int, _Step], bool]) -> None:
    """Until nothing moves: what is left over the verifier finds."""
    moved = True
    while moved:
        moved = False
        for rank, blocks in enumerate(programs):
            for channel, block in enumerate(blocks):
                while ended[rank][channel] < len(block.steps):
                    step = block.steps[ended[rank][channel]]
                    if step.after is not None:
                        other, index = step.after
                        known = other < len(blocks) and index < len(blocks[other].ends)
                        if not known or ended[rank][other] <= blocks[other].ends[index]:
                            break
                    if not run(rank, step):
                        break
                    ended[rank][channel] += 1
                    moved = True
