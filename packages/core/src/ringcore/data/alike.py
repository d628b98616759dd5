"""Whether ranks that deal a data set among themselves were told the same: else rows are dealt twice, or to nobody."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from ringcore._errors import MismatchError, RingcoreError
from ringcore.job.agreement import differences, gather_bytes
from ringcore.job.state import context, is_initialized


@dataclass
class Told:
    """What a rank was told of the data that all deal among themselves.

    Attributes:
        shown: By the name of an argument, its value for people.
        compared: What must be the same instead of what is shown: hosts may have the same files in different places.
    """

    shown: dict[str, object] = field(default_factory=dict)
    compared: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def compared_by_all(kind: str, *, is_of_job: bool) -> Iterator[Told]:
    """Make a rank's part of the data, and then compare what it was told with what all others were. Collective.

    A rank that cannot make its part lets no other one wait for it.

    Args:
        kind: The class that deals, in the words of the user.
        is_of_job: Whether the ranks of the job do. Who names rank and size deals among others, and compares nothing.

    Yields:
        To be filled in.

    Raises:
        MismatchError: They differ, or a rank could not make its part. On every rank that could.
    """
    told = Told()
    try:
        yield told
    except Exception as error:
        if is_of_job:
            with contextlib.suppress(RingcoreError):
                _exchange(kind, {"refused": f"{type(error).__name__}: {error}"})
        raise
    if is_of_job:
        _compare(kind, told)


def _compare(kind: str, told: Told) -> None:
    shown = {name: str(value) for name, value in told.shown.items()}
    parts = _exchange(kind, {"shown": shown, "compared": {**shown, **told.compared}})
    refusals = [f"rank {rank}: {part['refused']}" for rank, part in enumerate(parts) if "refused" in part]
    if refusals:
        raise MismatchError(f"{kind} could not be made on {len(refusals)} of {len(parts)} ranks: {'; '.join(refusals)}")
    differing = [name for name in shown if len({part["compared"].get(name) for part in parts}) > 1]
    listed = differences(
        {
            rank: {name: part["shown"][name] for name in differing if name in part["shown"]}
            for rank, part in enumerate(parts)
        }
    )
    listed += [f"all have the {name} {shown[name]}, and not the same there" for name in differing if not listed]
    if listed:
        raise MismatchError(
            f"the ranks have made their {kind} with different arguments: {'; '.join(listed)}. Remedy: pass the same on "
            "all ranks, which deal the rows among themselves; if one of them alone is to read all of the data, it "
            "passes rank=0, size=1, and the others make none"
        )


def _exchange(kind: str, own: dict[str, object]) -> list[dict[str, dict[str, str]]]:
    # Who comes to an elastic job makes its own when the others have long made theirs.
    if not is_initialized() or context().size == 1 or context().settings.elastic:
        return []
    return [json.loads(part) for part in gather_bytes(json.dumps(own).encode(), context().next_name(f"data.{kind}"))]
