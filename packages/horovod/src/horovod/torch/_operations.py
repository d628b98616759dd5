"""How an operation of Horovod's is carried out by one of ringcore's: its name, its end, its arithmetic of integers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import ringcore_torch as ring
import torch
from ringcore import InvalidArgument

from horovod.common.operations import NamesInUse, cycle_s
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.compression import Compression

_names = NamesInUse()


@dataclasses.dataclass(frozen=True)
class Verb:
    """An operation, and the functions of ringcore that start it.

    Attributes:
        kind: What names of operations begin with.
        one: Takes a tensor.
        group: Takes several; of some kinds there are no groups.
        in_place: The results go where the tensors are.
        now: Takes a tensor and waits, which is quicker than `one`.
    """

    kind: str
    one: Callable[..., Any]
    group: Any = None
    in_place: bool = False
    now: Any = None


def _alltoall_async(tensor: torch.Tensor, *, splits: Any, **options: Any) -> ring.Handle:
    if isinstance(splits, torch.Tensor) and splits.dtype is not torch.int32:
        raise InvalidArgument(f"alltoall takes splits of torch.int32, not {splits.dtype}")
    return ring.alltoall_async(tensor, splits, **options)


ALLREDUCE = Verb("allreduce", ring.allreduce_async, ring.grouped_allreduce_async, now=ring.allreduce)
ALLREDUCE_ = Verb("allreduce", ring.allreduce_async_, ring.grouped_allreduce_async_, in_place=True, now=ring.allreduce_)
ALLGATHER = Verb("allgather", ring.allgather_async, ring.grouped_allgather_async)
BROADCAST = Verb("broadcast", ring.broadcast_async, now=ring.broadcast)
BROADCAST_ = Verb("broadcast", ring.broadcast_async_, in_place=True, now=ring.broadcast_)
ALLTOALL = Verb("alltoall", _alltoall_async)
REDUCESCATTER = Verb("reducescatter", ring.reducescatter_async, ring.grouped_reducescatter_async)


@dataclasses.dataclass(frozen=True)
class Options:
    """What the caller of an operation asks for.

    Attributes:
        name: The caller's.
        process_set: The ranks that take part.
        own: What this kind of operation takes besides, under ringcore's names.
        compression: How tensors are sent.
    """

    name: str | None = None
    process_set: ProcessSet = global_process_set
    own: dict[str, Any] = dataclasses.field(default_factory=dict)
    compression: Any = Compression.none


class Handle:
    """An operation under way.

    Args:
        started: The one of ringcore.
        name: As ringcore knows it.
        finish: Makes Horovod's results from ringcore's.
    """

    def __init__(self, started: Any, name: str, finish: Callable[[list[Any]], list[Any]] | None) -> None:
        self.started = started
        self.name = name
        self.is_group = True
        self._finish = finish
        self._cycle_end = time.monotonic() + cycle_s()

    def done(self) -> bool:
        """Whether it has ended, and the cycle in which it began."""
        return time.monotonic() >= self._cycle_end and bool(self.started.done())

    def results(self) -> list[Any]:
        """Wait for the results."""
        try:
            found = self.started.synchronize()
        finally:
            _names.clear()
        results = found if isinstance(found, list) else [found]
        if self._finish is not None:
            results, self._finish = self._finish(results), None
        return results

    def synchronize(self) -> Any:
        """Wait for the result: of a group the list."""
        results = self.results()
        return results if self.is_group else results[0]


def start(verb: Verb, tensors: list[Any], options: Options, *, waits: bool = False) -> Handle:
    """Start an operation; `waits`: nothing else is done before its results are asked for.

    Floats are scaled by the engine. Integers are multiplied as float64 and cut towards zero, before the reduction and
    after it; their average is a sum that is multiplied so.
    """
    own, finish = options.own, None
    if "op" in own and any(map(_is_integer, tensors)):
        tensors, own, finish = _scaled_outside(verb, tensors, options)
    name = _names.take(verb.kind, options.name, options.process_set)
    try:
        started = _call(verb, tensors, waits, name=name, process_set=options.process_set, **own)
    except BaseException:
        _names.clear()
        raise
    if verb is ALLTOALL and own["splits"] is None:
        finish = lambda rows: [(rows[0], torch.tensor(started.rows(), dtype=torch.int32, device="cpu"))]  # noqa: E731
    return Handle(started, name, finish)


def _call(verb: Verb, tensors: list[Any], waits: bool, **options: Any) -> Any:
    if len(tensors) != 1:
        return verb.group(tensors, **options)
    if waits and verb.now is not None:
        return ring.Handle.of_nothing(verb.now(tensors[0], **options))
    return verb.one(tensors[0], **options)


def _is_integer(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and not (tensor.is_floating_point() or tensor.dtype is torch.bool)


def _scaled_outside(
    verb: Verb, tensors: list[Any], options: Options
) -> tuple[list[Any], dict[str, Any], Callable[[list[Any]], list[Any]] | None]:
    op, before, after = (options.own[key] for key in ("op", "prescale_factor", "postscale_factor"))
    if op is ring.Average:
        op, after = ring.Sum, after / options.process_set.size()

    def finish(results: list[Any]) -> list[Any]:
        targets = tensors if verb.in_place else results
        for target, result in zip(targets, results, strict=True):
            target.detach().copy_(_scaled(result, after))
        return targets

    return [_scaled(tensor, before) for tensor in tensors], {"op": op}, None if before == after == 1.0 else finish


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    if factor == 1.0:
        return tensor
    return (tensor.double() * factor).to(tensor.dtype)
