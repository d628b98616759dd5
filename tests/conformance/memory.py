"""What calls leave behind of memory, descriptors and threads: nothing. Nothing here knows a framework."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from conformance.adapters import Adapter

# Bytes of a tensor, how many calls are counted, and how many bytes may come and go: less than one in four of the calls
# would leave, of which each takes some 1,000 bytes at least. That is what is made at the first use, and tensors and
# results of those that were dropped, which on a busy machine are under way for long. A small one goes the short way
# where it is waited for at once, and into a bucket where it is not; a large one is an operation of its own.
SIZES = {
    "small": (64, 10_000, 2 << 20),
    "bucketed": (32 << 10, 2_000, 8 << 20),
    "large": (2 << 20, 320, 50 << 20),
}
# Of these no small ones: an eager call of TensorFlow takes 1 ms, and the operations of torch.distributed have names of
# their own, of which the engine keeps some thousands.
WITHOUT_SMALL = ("tensorflow", "torch_distributed")
VERBS = (
    "allreduce", "allreduce_", "grouped_allreduce", "grouped_allreduce_", "allgather", "grouped_allgather",
    "broadcast", "broadcast_", "reducescatter", "grouped_reducescatter", "alltoall",
)  # fmt: skip
# Calls under way at once.
_TOGETHER = 8
# The names come again, as those of a training loop do. Nobody knows when an operation that was dropped is done: half
# way to its name's next use all wait for each other, as a framework's own threads may take as long as they like.
_NAMES = 256
_LIBC = ctypes.CDLL(None)
Way = Callable[[Any, str, list[Any], Iterator[str]], None]


def grown(adapter: Adapter, verb: str, size: str) -> dict[str, int]:
    """How much more this process holds after so many calls, beyond what is allowed; nothing is collected meanwhile."""
    nbytes, count, allowed_bytes = SIZES[size]
    tensors = [adapter.tensor(np.ones(nbytes // 4, np.float32)) for _ in range(_TOGETHER)]
    ways: list[Way] = [_at_once, _waited, _dropped]
    if hasattr(adapter.collectives, "poll"):
        ways.append(_polled)
    names = itertools.cycle(f"memory.{verb}.{size}.{index}" for index in range(_NAMES))

    def call(times: int) -> None:
        for way in ways:
            for turn in range(max(1, times // len(ways) // _TOGETHER)):
                way(adapter.collectives, verb, tensors, names)
                if turn % (_NAMES // _TOGETHER // 2) == 0:
                    adapter.collectives.barrier()
        adapter.collectives.barrier()

    call(min(count, 2 * _NAMES))
    before = held()
    call(count)
    grown = {what: now - before[what] for what, now in held().items()}
    allowed = {"bytes": allowed_bytes, "descriptors": 0, "threads": _TOGETHER}
    return {what: more - allowed[what] for what, more in grown.items()}


def has(adapter: Adapter, verb: str) -> bool:
    """Whether the adapter has the verb, at once and to be waited for."""
    return hasattr(adapter.collectives, verb) and hasattr(adapter.collectives, _starting(verb))


def _starting(verb: str) -> str:
    return verb[:-1] + "_async_" if verb.endswith("_") else verb + "_async"


def _arguments(verb: str, tensor: Any) -> tuple[Any, ...]:
    if verb.startswith("grouped"):
        return ([tensor],)
    return (tensor, 0) if verb.startswith("broadcast") else (tensor,)


def _at_once(collectives: Any, verb: str, tensors: list[Any], names: Iterator[str]) -> None:
    for tensor in tensors:
        getattr(collectives, verb)(*_arguments(verb, tensor), name=next(names))


def _started(collectives: Any, verb: str, tensors: list[Any], names: Iterator[str]) -> list[Any]:
    start = getattr(collectives, _starting(verb))
    return [start(*_arguments(verb, tensor), name=next(names)) for tensor in tensors]


def _waited(collectives: Any, verb: str, tensors: list[Any], names: Iterator[str]) -> None:
    for handle in reversed(_started(collectives, verb, tensors, names)):
        collectives.synchronize(handle)


def _polled(collectives: Any, verb: str, tensors: list[Any], names: Iterator[str]) -> None:
    for handle in _started(collectives, verb, tensors, names):
        while not collectives.poll(handle):
            os.sched_yield()  # the threads that are waited for may be without a processor


def _dropped(collectives: Any, verb: str, tensors: list[Any], names: Iterator[str]) -> None:
    # The last one is waited for: more would be under way at once than a loop has.
    collectives.synchronize(_started(collectives, verb, tensors, names)[-1])


def held() -> dict[str, int]:
    """What this process holds."""
    _LIBC.malloc_trim(0)  # what was freed is not held
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "bytes": int(status["VmRSS"].split()[0]) << 10,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
    }
