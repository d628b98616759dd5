"""Before ranks get a state: whether all keep the same, and who needs it. Other models are told of first."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from ringcore._errors import InvalidArgument
from ringcore.job.agreement import gather_bytes
from ringcore.job.state import context

if TYPE_CHECKING:
    from ringcore.elastic.state import State


def ranks_to_sync(state: State) -> list[int]:
    """Compare what this rank keeps with what rank 0 keeps, and find out who needs the state. Collective.

    Args:
        state: What is kept.

    Returns:
        Rank 0, and those that need its state: who has come, or has gone back to a commit. All, where rank 0 has.

    Raises:
        InvalidArgument: They differ. Not on those who keep what rank 0 does: for them it is a lost rank.
    """
    current = context()
    own = state.describe()
    data = json.dumps(own).encode()
    parts = gather_bytes(bytes([current.is_intact]) + hashlib.sha256(data).digest(), current.next_name("elastic.alike"))
    if len({part[1:] for part in parts}) == 1:
        return [rank for rank, part in enumerate(parts) if rank == 0 or not (part[0] and parts[0][0])]
    first: dict[str, str] = json.loads(gather_bytes(data, current.next_name("elastic.differs"))[0])
    if own != first:
        raise InvalidArgument(
            f"the state of rank {current.rank} is not that of rank 0: {_difference(first, own)}. Remedy: run the same "
            "script, with the same model, on all hosts"
        )
    return list(range(len(parts)))


def _difference(first: dict[str, str], own: dict[str, str]) -> str:
    """The first one, in the order of rank 0."""
    for name, is_there in first.items():
        if name not in own:
            return f"it has no {name}, which is {is_there} there"
        if own[name] != is_there:
            return f"{name} is {own[name]}, and {is_there} there"
    more = next((name for name in own if name not in first), None)
    return "what it keeps has another order" if more is None else f"it has {more}, {own[more]}, which rank 0 has not"
