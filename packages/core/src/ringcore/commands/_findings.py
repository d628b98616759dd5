"""What a timeline tells: who waited for whom, what was slow, how much of the communication was not hidden."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ringcore.commands._trace import Span

Interval = tuple[float, float]


@dataclass
class Operation:
    """One operation on all ranks, in microseconds.

    Attributes:
        tensor: What it is called.
        number: How many of that name there were before it.
        nbytes: Of the tensor.
        submitted: By rank.
        ended: By rank.
        how: What carried it out: "ring", "short cut" ...
        failed: Whether it did.
    """

    tensor: str
    number: int
    nbytes: int = 0
    submitted: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    how: str = ""
    failed: bool = False

    @property
    def begin(self) -> float:
        """When the first rank submitted it."""
        return min(self.submitted.values())

    @property
    def took(self) -> float:
        """Until the last rank had it."""
        return max(self.ended.values()) - self.begin

    @property
    def last(self) -> int:
        """The rank that submitted it last."""
        return max(self.submitted, key=lambda rank: self.submitted[rank])

    @property
    def late(self) -> float:
        """How long the first one waited for the last."""
        return self.submitted[self.last] - self.begin


@dataclass(frozen=True)
class RankShare:
    """How a rank spent its time, in microseconds.

    Attributes:
        recorded: From its first span to its last.
        communicated: Some operation was under way.
        stood_still: The program waited for one: that was not hidden behind computation.
        for_others: Of that, another rank had not come yet.
    """

    recorded: float
    communicated: float
    stood_still: float
    for_others: float


@dataclass(frozen=True)
class Findings:
    """What there is to tell.

    Attributes:
        operations: In the order of their beginning.
        shares: By rank.
        waits: (rank, the one that it waited for) -> how long its program stood still for that.
        still: By rank, when its program stood still.
        busy: By rank, when some operation was under way.
    """

    operations: list[Operation]
    shares: dict[int, RankShare]
    waits: dict[tuple[int, int], float]
    still: dict[int, list[Interval]]
    busy: dict[int, list[Interval]]

    def slowest(self, count: int) -> list[Operation]:
        """The operations that took longest."""
        return sorted(self.operations, key=lambda operation: -operation.took)[:count]


def find(spans: Iterable[Span]) -> Findings:
    """Look through a timeline."""
    still: dict[int, list[Interval]] = defaultdict(list)
    busy: dict[int, list[Interval]] = defaultdict(list)
    ranges: dict[int, Interval] = {}
    for span in spans:
        first, last = ranges.get(span.rank, (span.begin, span.end))
        ranges[span.rank] = min(first, span.begin), max(last, span.end)
        if span.awaited:
            still[span.rank].append((span.begin, span.end))
        if span.category == "operation":
            busy[span.rank].append((span.begin, span.end))
    still = {rank: united(still[rank]) for rank in ranges}
    busy = {rank: united(busy[rank]) for rank in ranges}
    operations = _operations(spans)
    late = _lateness(operations)
    waits = {pair: length(common(still[pair[0]], united(found))) for pair, found in late.items()}
    shares = {}
    for rank, (first, last) in sorted(ranges.items()):
        for_others = united(interval for pair, found in late.items() if pair[0] == rank for interval in found)
        shares[rank] = RankShare(
            last - first, length(busy[rank]), length(still[rank]), length(common(still[rank], for_others))
        )
    return Findings(operations, shares, {pair: us for pair, us in waits.items() if us > 0}, still, busy)


def _operations(spans: Iterable[Span]) -> list[Operation]:
    """The n-th operation of a name on one rank is the n-th on all: none is submitted before the last one is done."""
    counts: dict[tuple[int, str], int] = defaultdict(int)
    numbers: dict[tuple[int, str, float], int] = {}
    found: dict[tuple[str, int], Operation] = {}
    for span in sorted((span for span in spans if span.category == "operation"), key=lambda span: span.submitted):
        key = span.rank, span.tensor, span.submitted
        if key not in numbers:
            numbers[key] = counts[span.rank, span.tensor]
            counts[span.rank, span.tensor] += 1
        number = numbers[key]
        operation = found.setdefault((span.tensor, number), Operation(span.tensor, number))
        operation.nbytes = max(operation.nbytes, span.nbytes)
        operation.submitted[span.rank] = span.submitted
        operation.ended[span.rank] = max(operation.ended.get(span.rank, span.end), span.end)
        operation.failed = operation.failed or span.activity == "failed"
        if span.activity not in ("negotiate", "queue", "pack", "copy", "unpack"):
            operation.how = span.activity
    return sorted(found.values(), key=lambda operation: operation.begin)


def _lateness(operations: Iterable[Operation]) -> dict[tuple[int, int], list[Interval]]:
    """When a rank had submitted what the last one had not."""
    found: dict[tuple[int, int], list[Interval]] = defaultdict(list)
    for operation in operations:
        last = operation.last
        until = operation.submitted[last]
        for rank, submitted in operation.submitted.items():
            if submitted < until:
                found[rank, last].append((submitted, until))
    return found


def united(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time in intervals that do not overlap, in order."""
    result: list[Interval] = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1] = result[-1][0], max(result[-1][1], end)
        else:
            result.append((begin, end))
    return result


def common(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The time that is in both; neither's intervals overlap, and all are in order."""
    result = []
    ends = [end for _, end in second]
    for begin, end in first:
        for other in range(bisect.bisect_right(ends, begin), len(second)):
            if second[other][0] >= end:
                break
            result.append((max(begin, second[other][0]), min(end, second[other][1])))
    return result


def length(intervals: Iterable[Interval]) -> float:
    """How much time that is."""
    return sum(end - begin for begin, end in intervals)
