"""Before ranks get a state: whether all keep the same, and who needs it. Other models are told of first."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcore._errors import InvalidArgument
from ringcore.job import members
from ringcore.job.agreement import gather_bytes
from ringcore.job.state import context

if TYPE_CHECKING:
    from ringcore.elastic.state import State

# Where in what a rank says are the hashes of what it keeps, and of how it would send that.
_IS_ALIKE, _OUTLINE = slice(1, 33), slice(33, 65)
_NO_OUTLINE = hashlib.sha256(b"").digest()


@dataclass(frozen=True)
class Parts:
    """What ranks do when the state is given to those that need it.

    Attributes:
        givers: Rank 0, and who has the same as it has. Nobody, where rank 0 has gone back to a commit.
        takers: Who needs it: whoever has come, or has gone back to a commit.
    """

    givers: Sequence[int]
    takers: Sequence[int]


def find_parts(state: State) -> Parts | None:
    """Compare what this rank keeps with what rank 0 keeps, and find out who needs the state. Collective.

    Args:
        state: What is kept.

    Returns:
        None if another process was let in meanwhile, which needs it too: ask again.

    Raises:
        InvalidArgument: They differ. Not on those who keep what rank 0 does: for them it is a lost rank.
    """
    current = context()
    own = state.describe()
    data = json.dumps(own).encode()
    outline = hashlib.sha256(state.outline().encode() if current.is_intact else b"").digest()
    said = bytes([current.is_intact]) + hashlib.sha256(data).digest() + outline
    parts = gather_bytes(said + members.pack_arrivals(), current.next_name("elastic.alike"))
    if len({part[_IS_ALIKE] for part in parts}) == 1:
        comes = members.arrived_everywhere([part[len(said) :] for part in parts])
        if comes and members.let_in(min(comes)):
            return None
        takers = [rank for rank, part in enumerate(parts) if not (part[0] and parts[0][0])]
        outlines = [part[_OUTLINE] for part in parts]
        same = [rank for rank in range(len(parts)) if rank not in takers and outlines[rank] == outlines[0]]
        return Parts(same[:1] if outlines[0] == _NO_OUTLINE else same, takers)
    first: dict[str, str] = json.loads(gather_bytes(data, current.next_name("elastic.differs"))[0])
    if own != first:
        raise InvalidArgument(
            f"the state of rank {current.rank} is not that of rank 0: {_difference(first, own)}. Remedy: run the same "
            "script, with the same model, on all hosts"
        )
    return Parts([], list(range(len(parts))))


def _difference(first: dict[str, str], own: dict[str, str]) -> str:
    """The first one, in the order of rank 0."""
    for name, is_there in first.items():
        if name not in own:
            return f"it has no {name}, which is {is_there} there"
        if own[name] != is_there:
            return f"{name} is {own[name]}, and {is_there} there"
    more = next((name for name in own if name not in first), None)
    return "what it keeps has another order" if more is None else f"it has {more}, {own[more]}, which rank 0 has not"
