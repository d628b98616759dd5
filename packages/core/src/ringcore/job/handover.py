"""The state of ranks that train goes to those that have come: each of several ranks sends its share of every tensor.

So it takes as long as the connection of whoever comes needs for it, and no longer because rank 0's own is slower or has
other things to do. Where a rank of the newcomer's host has the state, all of it goes through the host's memory.

Shares fit together only where those who send them have the same bits, which is not certain: a rank may have running
means or a random generator of its own. Therefore all of them, and those that come, tell each other a hash of each large
tensor before it is sent. Where the hashes of the senders differ the tensor comes from rank 0 alone, and whoever has it
already, as the frozen weights of a model that each process has read, is sent nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ringcore import _native
from ringcore._native import Buffer, Handle
from ringcore.job.process_sets import ProcessSet, process_set_for_a_while
from ringcore.job.state import context, rank

_ALLGATHER: int = _native.COLLECTIVES["allgather"]
_BROADCAST: int = _native.COLLECTIVES["broadcast"]
_SUM: int = _native.REDUCE_OPS["sum"]
_BYTE: int = _native.DTYPES["uint8"]
_HASH_BYTES = 8
# A smaller tensor comes from rank 0 alone: its shares would not be worth the messages.
SHARED_BYTES = 1 << 18
# While so much is on its way the hashes of the next tensors are taken.
_BATCH_BYTES = 32 << 20
# The link of whoever comes is full long before so many hosts send to it.
_MOST_GIVERS = 8
# Shares begin at whole cache lines.
_ALIGNED_BYTES = 64


@dataclass(frozen=True)
class Way:
    """Who sends a share to whom.

    Attributes:
        giver: Sends it.
        takers: Get it.
        share: Which one of `shares`, counted from 0.
        shares: In how many every tensor is cut.
    """

    giver: int
    takers: Sequence[int]
    share: int = 0
    shares: int = 1

    @property
    def ranks(self) -> list[int]:
        """Those and this one, ascending."""
        return sorted({self.giver, *self.takers})

    def part_of(self, nbytes: int) -> tuple[int, int]:
        """Where the share of so many bytes begins and ends."""
        lines = -(-nbytes // _ALIGNED_BYTES)
        begin, end = (lines * number // self.shares * _ALIGNED_BYTES for number in (self.share, self.share + 1))
        return min(begin, nbytes), min(end, nbytes)


def ways_between(givers: Sequence[int], takers: Sequence[int], host_of: Sequence[int]) -> list[Way]:
    """How the state goes from those who have it to those who need it.

    Args:
        givers: Rank 0 first; all have the same state.
        takers: Those who need it.
        host_of: By rank.

    Returns:
        None if all are on one host, where what rank 0 writes is there for all to read.
    """
    if len({host_of[each] for each in (*givers, *takers)}) == 1:
        return []
    giver_of: dict[int, int] = {}
    for giver in givers:
        giver_of.setdefault(host_of[giver], giver)
    ways = []
    distant = [taker for taker in takers if host_of[taker] not in giver_of]
    for host, giver in giver_of.items():
        near = [taker for taker in takers if host_of[taker] == host]
        if near:
            ways.append(Way(giver, near))
    if distant:
        senders = list(giver_of.values())[:_MOST_GIVERS]
        ways += [Way(giver, distant, share, len(senders)) for share, giver in enumerate(senders)]
    return ways


@dataclass
class _Tensor:
    """One that is handed over.

    Attributes:
        name: On all ranks.
        target: Where it is, or is to be.
        nbytes: How large it is.
        hashes: Gathers what all have of it.
        parts: What this rank sends or gets of it.
    """

    name: str
    target: Buffer
    nbytes: int
    hashes: Handle
    parts: list[Handle] | None = None


class Handover(ProcessSet):
    """What adapters take for the process set of rank 0 and those that have come, when they broadcast a state.

    Of the ranks that send shares the others do as rank 0: they call the same functions, for a root that they are
    themselves (`root`), and nothing is written to what they have.

    Attributes:
        first: Rank 0, and those that have come.
        everybody: These and all who send.

    Args:
        first: See above.
        everybody: See above.
        ways: Each with its process set.
    """

    def __init__(self, first: ProcessSet, everybody: ProcessSet, ways: Sequence[tuple[Way, ProcessSet]]) -> None:
        super().__init__(first.ranks)
        self.process_set_id = first.process_set_id
        self.first = first
        self.everybody = everybody
        self._hands_out = bool(ways)
        self._ways = [(way, process_set) for way, process_set in ways if rank() in way.ranks]
        self._takers = first.ranks[1:]
        self._givers = sorted({0, *(way.giver for way, _ in ways)})
        self._alone = Way(0, self._takers)
        self._gathered: list[_Tensor] = []

    @property
    def gives(self) -> bool:
        """Whether this rank has the state, and sends some of it."""
        return rank() in self._givers

    @property
    def root(self) -> int:
        """What this rank names as the root of a broadcast."""
        return rank() if self.gives else 0

    def start(
        self, source: Buffer, target: Buffer, nbytes: int, name: str, result: object,
        finish: Callable[[Handle], Any] | None,
    ) -> Handle:  # fmt: skip
        """Start to give a tensor to those that have come.

        Args:
            source: What this rank has of it.
            target: Where it is to be; it may be `source`.
            nbytes: How large it is.
            name: Identifies it on all ranks.
            result: Of the handle, unless there is a `finish`.
            finish: Makes the result.
        """
        shared = self._hands_out and source.device < 0 and nbytes >= SHARED_BYTES
        if not shared and self.included():
            return self._submit(_BROADCAST, name, source, target, self.process_set_id or 0, result, finish)
        if source.address != target.address and source.device < 0:
            ctypes.memmove(target.address, source.address, nbytes)
        if not shared:
            nothing = Handle.of_nothing(None)
            return Handle.of_nothing(result if finish is None else finish(nothing))
        own = _native.hash_of(source.address, nbytes).to_bytes(_HASH_BYTES, "little")
        told = _native.describe(bytearray(own), writable=False)
        tensor: list[_Tensor] = []

        def done(handle: Handle) -> Any:
            self._wait_for(tensor[0])
            return result if finish is None else finish(handle)

        handle = self._submit(_ALLGATHER, f"{name}.hash", told, None, self.everybody.process_set_id or 0, None, done)
        tensor.append(_Tensor(name, target, nbytes, handle))
        self._gathered.append(tensor[0])
        if sum(each.nbytes for each in self._gathered) >= _BATCH_BYTES:
            self._send()
        return handle

    def _wait_for(self, tensor: _Tensor) -> None:
        if tensor.parts is None:
            self._send()
        for part in tensor.parts or ():
            part.wait()

    def _send(self) -> None:
        """What all have told the hashes of: all ranks call this behind the same tensor."""
        gathered, self._gathered = self._gathered, []
        for tensor in gathered:
            tensor.parts = list(self._start_parts(tensor))

    def _start_parts(self, tensor: _Tensor) -> Iterator[Handle]:
        tensor.hashes.wait()
        told = bytes(tensor.hashes.result())
        hash_of = {
            member: told[i * _HASH_BYTES : (i + 1) * _HASH_BYTES] for i, member in enumerate(self.everybody.ranks)
        }
        ways: list[tuple[Way, int]] = [(way, process_set.process_set_id or 0) for way, process_set in self._ways]
        if len({hash_of[giver] for giver in self._givers}) > 1:
            ways = [(self._alone, self.process_set_id or 0)] if self.included() else []
        for way, set_id in ways:
            begin, end = way.part_of(tensor.nbytes)
            if begin == end or all(hash_of[taker] == hash_of[0] for taker in way.takers):
                continue
            part = Buffer(tensor.target.address + begin, (end - begin,), _BYTE, tensor.target)
            root = way.ranks.index(way.giver)
            yield self._submit(_BROADCAST, tensor.name, part, part, set_id, None, None, root)

    @staticmethod
    def _submit(
        collective: int, name: str, source: Buffer, target: Buffer | None, set_id: int, result: object,
        finish: Callable[[Handle], Any] | None, root: int = 0,
    ) -> Handle:  # fmt: skip
        targets = () if target is None else (target,)
        return context().runtime.submit(
            collective, name, (source,), targets, _SUM, root, 1.0, 1.0, set_id, 0, (), False, result, finish
        )


@contextlib.contextmanager
def handing_over(givers: Sequence[int], takers: Sequence[int]) -> Iterator[Handover]:
    """The process sets in which ranks give their state to those that have come. All ranks of the job call this.

    Args:
        givers: Who has the state that rank 0 has: rank 0 is the first of them.
        takers: Who needs it.
    """
    ways = ways_between(givers, takers, context().host_of)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(process_set_for_a_while([0, *takers]))
        among = sorted({0, *takers, *(way.giver for way in ways)})
        everybody = first if among == first.ranks else stack.enter_context(process_set_for_a_while(among))
        sets = [(way, stack.enter_context(process_set_for_a_while(way.ranks))) for way in ways]
        yield Handover(first, everybody, sets)
