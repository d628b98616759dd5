"""Ways to deal gradients out to operations, for adapters that meet a step only where its gradients are sent.

A compiled step makes the operations that it was traced with. So a program has those of all ways that are tried, and in
each run does those of one: which, it asks where the gradients are, and that is also where the step before it ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ringcore.adapter import gradients
from ringcore.adapter.tuning import Tuner, tell_untuned
from ringcore.job.process_sets import ProcessSet
from ringcore.job.state import context, is_elastic

_FACTORS = (1, 1 / 4, 4, 16)  # of the usual size of a bucket, which comes first
_USUALLY_AT_ONCE = 2  # operations without a priority have two lanes, and each has one at a time
# Operations of a way that is tried besides: each is a condition of the program, which takes time to compile.
_MOST_BUCKETS = 64


@dataclasses.dataclass(frozen=True)
class Dealing:
    """A way to deal gradients out.

    Attributes:
        buckets: The gradients of each operation, by their indices.
        bucket_bytes: A bucket is closed when it has so many; None: all go together.
        at_once: While buckets wait for data of other ranks further ones begin; else two are under way at a time.
    """

    buckets: tuple[tuple[int, ...], ...]
    bucket_bytes: int | None
    at_once: bool = False

    def __str__(self) -> str:
        size = "one bucket" if self.bucket_bytes is None else f"buckets of {self.bucket_bytes} bytes"
        return f"{size}{', at once' if self.at_once else ''}"


@dataclasses.dataclass(frozen=True)
class Part:
    """One operation of a way.

    Attributes:
        way: The index of the way.
        number: Of the operation in it.
        indices: Of its gradients.
        suffix: Of its name, so that no two ways have operations of one name.
        at_once: See `Dealing`.
        siblings: How many operations the way has.
    """

    way: int
    number: int
    indices: tuple[int, ...]
    suffix: str
    at_once: bool
    siblings: int


class Dealt:
    """How gradients are dealt out, in all ways that are tried; in the usual one where nothing is tried.

    Attributes:
        ways: The first one is the usual one.
        parts: The operations of all ways. Of those whose gradients backward has made first come first, so that a
            program which does one after the other, and passes by those of ways that it does not take, waits for no
            gradient without need.
        tuner: What tries them; None where there is one.
    """

    def __init__(self, ways: Sequence[Dealing], tuner: Tuner[Dealing] | None) -> None:
        self.ways = list(ways)
        self.tuner = tuner
        parts = [part for way, dealing in enumerate(ways) for part in _parts_of(way, dealing)]
        self.parts = sorted(parts, key=lambda part: -min(part.indices)) if len(self.ways) > 1 else parts

    def begin_step(self) -> int:
        """The index of the way of the step that has come to its gradients. Once a step; on all ranks.

        Raises:
            RingcoreError: What an allreduce raises.
        """
        return 0 if self.tuner is None else self.tuner.begin_step()


def _parts_of(way: int, dealing: Dealing) -> list[Part]:
    title = "" if way == 0 else f".{dealing.bucket_bytes}{'.at_once' if dealing.at_once else ''}"
    return [
        Part(way, number, indices, title, dealing.at_once, len(dealing.buckets))
        for number, indices in enumerate(dealing.buckets)
    ]


def _dealing(sizes: Sequence[int], bucket_bytes: int) -> Dealing:
    return Dealing(tuple(map(tuple, gradients.buckets(sizes, bucket_bytes=bucket_bytes))), bucket_bytes)


def dealings(sizes: Sequence[int], *, whole: bool = False, at_once: bool = False) -> list[Dealing]:
    """The ways that differ for gradients of these sizes; first what is done without trials.

    Args:
        sizes: In bytes, in the order of their parameters.
        whole: Without trials all go together; else in buckets.
        at_once: Operations may be under way at the same time, and have no priorities: over a network they are also
            tried with one for all, with which they begin while others wait.
    """
    usual = gradients.BUCKET_BYTES
    first = Dealing((tuple(range(len(sizes))),), None) if whole else _dealing(sizes, usual)
    found: dict[tuple[tuple[int, ...], ...], Dealing] = {first.buckets: first}
    for factor in _FACTORS:
        dealing = _dealing(sizes, int(usual * factor))
        if len(dealing.buckets) <= _MOST_BUCKETS:
            found.setdefault(dealing.buckets, dealing)
    tried = list(found.values())
    if at_once and not {"tcp", "tls"}.isdisjoint(context().runtime.transports()):
        several = [dealing for dealing in tried if _USUALLY_AT_ONCE < len(dealing.buckets) <= _MOST_BUCKETS]
        tried += [dataclasses.replace(dealing, at_once=True) for dealing in several]
    return tried


# By what is asked for: who traces such a step anew, or makes one outside of a program, goes on with what was found.
_made: dict[object, Dealt] = {}


def dealt(
    framework: str, name: str, sizes: Sequence[int], process_set: ProcessSet, *, groups: int | None = None,
    whole: bool = False, at_once: bool = False, why_not: str = "",
) -> Dealt:  # fmt: skip
    """How these gradients are dealt out: in several ways where `RINGCORE_AUTOTUNE` asks for trials.

    Args:
        framework: For the log, and for the file of what was chosen.
        name: Identifies the gradients on all ranks.
        sizes: See `dealings`.
        process_set: The ranks that train together.
        groups: As many operations as the user wants, and nothing is tried; None: by size.
        whole: See `dealings`.
        at_once: See `dealings`.
        why_not: Why nothing can be tried here, as the end of a sentence.
    """
    asked = context().settings.autotune and process_set.included() and process_set.size() > 1 and len(sizes) > 0
    if groups is not None:
        why_not = "groups says how they are sent"
    elif is_elastic():
        why_not = "a step of an elastic job may be made again, by other ranks"
    if not asked or why_not:
        if asked:
            tell_untuned(f"'{name}' of {framework}", why_not)
        usual = [list(range(len(sizes)))] if whole and groups is None else gradients.buckets(sizes, groups)
        return Dealt([Dealing(tuple(map(tuple, usual)), None)], None)
    key = (framework, name, tuple(sizes), process_set, whole, at_once)
    if key not in _made:
        ways = dealings(sizes, whole=whole, at_once=at_once)
        tuner = None
        if len(ways) == 1:
            tell_untuned(f"'{name}' of {framework}", "there is one way to send these")
        else:
            shape = f"{framework}: {len(sizes)} gradients of {sum(sizes)} bytes, usually {ways[0]}"
            tuner = Tuner(f"{name}.sending", ways, _ask_each_time, process_set=process_set, shape=shape)
        _made[key] = Dealt(ways, tuner)
    return _made[key]


def _ask_each_time(_: Dealing) -> None:
    """`Dealt.begin_step` tells each step."""
