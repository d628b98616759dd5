"""Whether all ranks begin with the same weights. Without it each would train a model of its own, and never know."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence

from ringcore import _native
from ringcore._errors import MismatchError
from ringcore._native import Buffer
from ringcore.adapter.collectives import ReduceOp, allreduce
from ringcore.adapter.objects import gather_bytes
from ringcore.job.process_sets import ProcessSet
from ringcore.job.state import context

_INT64: int = _native.DTYPES["int64"]
_HASHES = 1 << 62  # so many there are: a little more is still an int64
_NAMED = 3


def check_weights(
    names: Sequence[str], hashes: Iterable[int], process_set: ProcessSet, *, name: str, remedy: str,
    again: bool = False, may_differ: bool = True,
) -> None:  # fmt: skip
    """Compare the weights of all ranks by their hashes: one small allreduce.

    Args:
        names: Of the weights; as many on every rank.
        hashes: Of each, see `hash_of`. Not looked at where this rank abstains.
        process_set: The ranks that are to have the same.
        name: Identifies the call on all ranks.
        remedy: What gives all ranks the same weights, in the words of the framework.
        again: This rank has found these weights to be the same before. Where it has gone on with them since, and others
            have come, the first rank compares with those, and the rest abstain.
        may_differ: The user may turn this off, by check_weights=False.

    Raises:
        MismatchError: They differ. On every rank.
    """
    own = [] if abstains(process_set, again=again) else list(hashes)
    wrong = compared(own, len(names), process_set, name)
    if not wrong:
        return
    own = own or list(hashes)
    theirs = gather_bytes(own[wrong[0]].to_bytes(8, "little"), f"{name}.differ", process_set)
    raise different_weights(names, wrong, [int.from_bytes(each, "little") for each in theirs], process_set, remedy,
                            may_differ=may_differ)  # fmt: skip


def compared(own: Sequence[int], count: int, process_set: ProcessSet, name: str) -> list[int]:
    """Of which of so many hashes the ranks have several: one small allreduce.

    Args:
        own: This rank's, or none where it abstains.
        count: How many there are on every rank.
        process_set: The ranks that are to have the same.
        name: Identifies the call on all ranks.
    """
    return start_compared(own, count, process_set, name, blocking=True)()


def start_compared(
    own: Sequence[int], count: int, process_set: ProcessSet, name: str, *, blocking: bool = False
) -> Callable[[], list[int]]:
    """Begin what `compared` does; what is returned waits for it."""
    memory = (ctypes.c_int64 * (2 * count))(*comparable(own))
    buffer = (Buffer(ctypes.addressof(memory), (len(memory),), _INT64, memory),)
    handle = allreduce(buffer, buffer, name, op=ReduceOp.MAX, process_set=process_set, blocking=blocking)

    def differ() -> list[int]:
        handle.wait()
        return differing(list(memory))

    return differ


def abstains(process_set: ProcessSet, *, again: bool) -> bool:
    """Whether this rank contributes zeros to a comparison, see `check_weights`."""
    return again and context().is_intact and process_set.rank() > 0


def hash_of(address: int, nbytes: int) -> int:
    """Of so many bytes of this process's memory."""
    return _native.hash_of(address, nbytes) % _HASHES


def comparable(hashes: Sequence[int]) -> list[int]:
    """What ranks take the maximum of, to see whether they have the same hashes: as 64-bit integers."""
    # The largest hash and the largest of what it lacks: where they add up to more, somebody has another one. All are
    # above zero, which is what a rank contributes that has joined or abstains.
    return [*(each + 1 for each in hashes), *(_HASHES - each for each in hashes)]


def differing(maxima: Sequence[int]) -> list[int]:
    """Of which hashes the ranks have several, by the maxima of what `comparable` gives."""
    count = len(maxima) // 2
    return [index for index in range(count) if maxima[index] + maxima[index + count] != _HASHES + 1]


def different_weights(
    names: Sequence[str], wrong: Sequence[int], theirs: Sequence[int], process_set: ProcessSet, remedy: str,
    *, may_differ: bool = True,
) -> MismatchError:  # fmt: skip
    """The error that says so.

    Args:
        names: Of the weights.
        wrong: The indices of those that differ.
        theirs: The hash of the first of these, of each rank.
        process_set: The ranks.
        remedy: See `check_weights`.
        may_differ: See there as well.
    """
    ranks: dict[int, list[int]] = {}
    for rank, value in zip(process_set.ranks, theirs, strict=True):
        ranks.setdefault(value, []).append(rank)
    named = ", ".join(f"'{names[index]}'" for index in wrong[:_NAMED])
    more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return MismatchError(
        f"the ranks have different weights at the first step: {named}{more} (the first is one on ranks "
        f"{' and another on ranks '.join(str(group) for group in ranks.values())}). Each would train a model of its "
        f"own. Remedy: {remedy}{', or pass check_weights=False if they are to differ' if may_differ else ''}."
    )
