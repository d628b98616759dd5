"""Whether all ranks have made what they train with of the same arguments. Else they do different things, unseen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping

from ringcore._errors import MismatchError
from ringcore.adapter.objects import gather_bytes
from ringcore.adapter.weights import start_compared
from ringcore.job.agreement import differences
from ringcore.job.process_sets import ProcessSet

_HASH_BYTES = 7  # fewer bits than the hashes have that can be compared


def check_arguments(what: str, arguments: Mapping[str, object], process_set: ProcessSet, *, name: str) -> None:
    """Compare the arguments of all ranks by their text: one small allreduce, in which ranks that have joined abstain.

    Args:
        what: They were given to, in the words of the user.
        arguments: Those that are to be the same on all ranks, by name.
        process_set: The ranks.
        name: Identifies the call on all ranks.

    Raises:
        MismatchError: They differ. On every rank.
    """
    told = f"the ranks have made their {what} with different arguments"
    start_comparing(
        arguments, process_set, name=name, told=told, remedy="pass the same arguments on all ranks", blocking=True
    )()


def start_progress_check(
    what: str, steps: int, loads: int, process_set: ProcessSet, *, name: str, blocking: bool
) -> Callable[[], None]:
    """Begin to look whether ranks that meet every so many steps have made as many, and have loaded states together.

    Args:
        what: Counts them, in the words of the user.
        steps: So many has this rank made, with those of a state that it has loaded.
        loads: So many states has it loaded.
        process_set: The ranks.
        name: Identifies the call on all ranks, whatever they meet for.
        blocking: The caller waits at once.

    Returns:
        Waits, and raises `MismatchError`, on every rank, where ranks are not where the others are.
    """
    return start_comparing(
        {"steps made": steps, "states loaded": loads}, process_set, name=name, blocking=blocking,
        told=f"the ranks' {what} are not at the same step",
        remedy="load what was kept behind one step on all ranks, or on none, and make as many steps on each",
    )  # fmt: skip


def start_comparing(
    values: Mapping[str, object], process_set: ProcessSet, *, name: str, told: str, remedy: str, blocking: bool = False
) -> Callable[[], None]:
    """Begin to compare values of all ranks by their text; what is returned waits, and raises where they differ.

    Args:
        values: Those that are to be the same on all ranks, by name.
        process_set: The ranks.
        name: Identifies the call on all ranks.
        told: What it is that they differ in.
        remedy: What makes them the same.
        blocking: The caller waits at once.
    """
    data = json.dumps({key: str(value) for key, value in values.items()}).encode()
    own = int.from_bytes(hashlib.blake2b(data, digest_size=_HASH_BYTES).digest(), "little")
    differ = start_compared([own], 1, process_set, name, blocking=blocking)

    def check() -> None:
        if not differ():
            return
        parts = gather_bytes(data, f"{name}.differ", process_set)
        # A rank that has joined has sent nothing.
        given = {rank: json.loads(part) for rank, part in zip(process_set.ranks, parts, strict=True) if part}
        raise MismatchError(f"{told}: {'; '.join(differences(given))}. Remedy: {remedy}.")

    return check
