"""Whether all ranks have made what they train with of the same arguments. Else they do different things, unseen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from ringcore._errors import MismatchError
from ringcore.adapter.objects import gather_bytes
from ringcore.adapter.weights import compared
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
    data = json.dumps({key: str(value) for key, value in arguments.items()}).encode()
    own = int.from_bytes(hashlib.blake2b(data, digest_size=_HASH_BYTES).digest(), "little")
    if not compared([own], 1, process_set, name):
        return
    parts = gather_bytes(data, f"{name}.differ", process_set)
    # A rank that has joined has sent nothing.
    given = {rank: json.loads(part) for rank, part in zip(process_set.ranks, parts, strict=True) if part}
    raise MismatchError(
        f"the ranks have made their {what} with different arguments: {'; '.join(differences(given))}. Remedy: pass "
        "the same arguments on all ranks."
    )
