"""Whether all ranks begin with the same weights. Without it each would train a model of its own, and never know."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterable, Sequence

from ringcore import _native
from ringcore._errors import MismatchError
from ringcore._native import Buffer
from ringcore.adapter.collectives import ReduceOp, allreduce
from ringcore.adapter.objects import gather_bytes
from ringcore.job.process_sets import ProcessSet

_INT64: int = _native.DTYPES["int64"]
_HASHES = 1 << 32
_NAMED = 3


def check_weights(
    names: Sequence[str], hashes: Iterable[int], process_set: ProcessSet, *, name: str, remedy: str
) -> None:
    """Compare the weights of all ranks by their hashes: one small allreduce.

    Args:
        names: Of the weights; as many on every rank.
        hashes: Of each, see `hash_of`.
        process_set: The ranks that are to have the same.
        name: Identifies the call on all ranks.
        remedy: What gives all ranks the same weights, in the words of the framework.

    Raises:
        MismatchError: They differ. On every rank.
    """
    own = list(hashes)
    # The largest hash and the largest of what it lacks: where they add up to more, somebody has another one. All are
    # above zero, which is what a rank contributes that has joined.
    memory = (ctypes.c_int64 * (2 * len(own)))(*(each + 1 for each in own), *(_HASHES - each for each in own))
    buffer = (Buffer(ctypes.addressof(memory), (len(memory),), _INT64, memory),)
    allreduce(buffer, buffer, name, op=ReduceOp.MAX, process_set=process_set, blocking=True)
    wrong = [index for index in range(len(own)) if memory[index] + memory[index + len(own)] != _HASHES + 1]
    if not wrong:
        return
    theirs = gather_bytes(own[wrong[0]].to_bytes(8, "little"), f"{name}.differ", process_set)
    ranks: dict[bytes, list[int]] = {}
    for rank, value in zip(process_set.ranks, theirs, strict=True):
        ranks.setdefault(value, []).append(rank)
    named = ", ".join(f"'{names[index]}'" for index in wrong[:_NAMED])
    more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    raise MismatchError(
        f"the ranks have different weights at the first step: {named}{more} (the first is one on ranks "
        f"{' and another on ranks '.join(str(group) for group in ranks.values())}). Each would train a model of its "
        f"own. Remedy: {remedy}, or pass check_weights=False if they are to differ."
    )


def hash_of(address: int, nbytes: int) -> int:
    """Of so many bytes of this process's memory."""
    return zlib.crc32((ctypes.c_char * nbytes).from_address(address)) if nbytes else 0
