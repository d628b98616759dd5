"""Python objects between the authenticated ranks of one job."""

from __future__ import annotations

import contextlib
from typing import Any

from ringcore._errors import InvalidArgument
from ringcore._objects import is_plain, parse_plain, pickled, plain, unpickle
from ringcore.adapter import collectives
from ringcore.adapter.buffer import as_buffer
from ringcore.job import agreement
from ringcore.job.handover import Handover
from ringcore.job.process_sets import ProcessSet, global_process_set, process_set_id_of
from ringcore.job.state import context

_LENGTH_BYTES = 8


def _dumps(value: object) -> bytes:
    """Nothing where this rank may not pickle, and would have to: it still takes part, so that nobody waits for it."""
    if context().settings.allow_pickle:
        return pickled(value)
    with contextlib.suppress(InvalidArgument):
        return plain(value)
    return b""


def _loads(data: bytes, rank: int) -> Any:
    """What another rank has sent. To unpickle that may run any code.

    Raises:
        InvalidArgument: This rank or the other one has `RINGCORE_ALLOW_PICKLE` off, and the object is not plain.
    """
    if is_plain(data):
        return parse_plain(data)
    own = context()
    if not own.settings.allow_pickle:
        rank = own.rank
    elif data:
        return unpickle(data)
    raise InvalidArgument(
        f"objects cannot be exchanged by pickle: RINGCORE_ALLOW_PICKLE is off on rank {rank}. Remedy: exchange "
        "tensors, or objects of numbers, text, lists, dictionaries and numpy's arrays with it off on all ranks; "
        "or set it to 1 on all ranks if you trust them"
    )


def broadcast_object(
    value: Any = None, root_rank: int = 0, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Give every rank the root's object, by pickle (cloudpickle where it is installed).

    Where `RINGCORE_ALLOW_PICKLE` is off it goes as JSON and arrays: None, numbers, text, bytes, lists, tuples,
    dictionaries and arrays of numpy.

    Args:
        value: The object; looked at on the root only.
        root_rank: Rank of the job whose object it is.
        name: Identifies the call on all ranks.
        process_set: The ranks that take part.

    Raises:
        InvalidArgument: The object would have to be pickled, and `RINGCORE_ALLOW_PICKLE` is off here or on the root.
        MismatchError: Ranks named different roots. On every rank.
    """
    current = context()
    if isinstance(process_set, Handover):
        if not process_set.included():
            return value
        process_set = process_set.first
    name = collectives.name_or_next(name, "broadcast_object", process_set)
    data = bytearray(_dumps(value)) if current.rank == root_rank else bytearray()
    length = bytearray(len(data).to_bytes(_LENGTH_BYTES, "little"))
    _broadcast(length, root_rank, f"{name}.length", process_set)
    if current.rank != root_rank:
        data = bytearray(int.from_bytes(length, "little"))
    _broadcast(data, root_rank, f"{name}.data", process_set)
    return value if current.rank == root_rank and data else _loads(bytes(data), root_rank)


def _broadcast(data: bytearray, root_rank: int, name: str, process_set: ProcessSet) -> None:
    buffer = as_buffer(data, writable=True)
    collectives.broadcast(buffer, buffer, root_rank, name, process_set=process_set, blocking=True)


def allgather_object(value: Any, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, in the order of the ranks; see `broadcast_object`.

    Raises:
        InvalidArgument: An object would have to be pickled, and `RINGCORE_ALLOW_PICKLE` is off on a rank. On all.
    """
    name = collectives.name_or_next(name, "allgather_object", process_set)
    parts = gather_bytes(_dumps(value), name, process_set)
    return [_loads(part, rank) for rank, part in zip(process_set.ranks, parts, strict=True)]


def gather_bytes(data: bytes, name: str, process_set: ProcessSet = global_process_set) -> list[bytes]:
    """Every rank's bytes, in the order of the ranks. Nothing is pickled."""
    return agreement.gather_bytes(data, name, process_set_id_of(process_set, "allgather", name))
