"""What ranks tell each other without pickle, before anything else is agreed."""

from __future__ import annotations

from collections.abc import Mapping

from ringcore import _native
from ringcore._errors import MismatchError
from ringcore._native import Buffer
from ringcore.job.state import context, is_initialized

_ALLGATHER: int = _native.COLLECTIVES["allgather"]
_BARRIER: int = _native.COLLECTIVES["barrier"]
_SUM: int = _native.REDUCE_OPS["sum"]
_NOTHING = Buffer(0, (0,), 0, None)


def gather_bytes(data: bytes, name: str, set_id: int = 0) -> list[bytes]:
    """Every rank's bytes, in the order of the ranks.

    Args:
        data: This rank's.
        name: Identifies the call on all ranks.
        set_id: The engine's number of the process set that takes part.
    """
    runtime = context().runtime
    source = _native.describe(bytearray(data), writable=False)
    handle = runtime.submit(_ALLGATHER, name, (source,), (), _SUM, 0, 1.0, 1.0, set_id, 0, (), False, None, None)
    handle.wait()
    view = memoryview(handle.result())
    parts, begin = [], 0
    for rows in handle.rows():
        parts.append(bytes(view[begin : begin + rows]))
        begin += rows
    return parts


def meet(name: str) -> None:
    """Return when all ranks of the job have called it."""
    context().runtime.submit(_BARRIER, name, (_NOTHING,), (), _SUM, 0, 1.0, 1.0, 0, 0, (), True, None, None)


def await_devices() -> None:
    """Wait until GPUs have ended all that this rank has launched on them: for the program it is done before.

    Raises:
        MembershipChangedError: A rank of an elastic job was lost before they had, and the results are none.
        RingcoreError: Why the job has failed.
    """
    if is_initialized():
        context().runtime.await_devices()


def agree(what: str, value: object) -> None:
    """Check that all ranks of the job passed the same value.

    Raises:
        MismatchError: They did not. On every rank.
    """
    current = context()
    values = [part.decode() for part in gather_bytes(repr(value).encode(), current.next_name(f"agree.{what}"))]
    if len(set(values)) > 1:
        listed = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(values))
        raise MismatchError(f"{what} was called differently: {listed}. Remedy: pass the same arguments on all ranks.")


def differences(given: Mapping[int, Mapping[str, str]]) -> list[str]:
    """What ranks were given differently, each as `seed is 1 on ranks [0, 2] and 7 on ranks [1]`.

    Args:
        given: By the rank, by the name of an argument, its value for people.
    """
    told = []
    for name in dict.fromkeys(name for arguments in given.values() for name in arguments):
        ranks: dict[str, list[int]] = {}
        for rank, arguments in given.items():
            ranks.setdefault(arguments.get(name, "not there"), []).append(rank)
        if len(ranks) > 1:
            told.append(f"{name} is {' and '.join(f'{value} on ranks {those}' for value, those in ranks.items())}")
    return told
