"""Whether ranks that deal a data set among themselves were told the same: else rows are dealt twice, or to nobody."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from ringcore._errors import MismatchError, RingcoreError
from ringcore.job.agreement import gather_bytes
from ringcore.job.state import context, is_initialized

_CALL = "data.ParquetShards"


def check_alike(shown: Mapping[str, str], compared: Mapping[str, str]) -> None:
    """Compare what this rank was told with what all others were. Collective.

    Args:
        shown: By the name of an argument, its value for people.
        compared: What must be equal where `shown` need not: hosts may have the same files in different places.

    Raises:
        MismatchError: They differ, or a rank could not make its part. On every rank that could.
    """
    parts = _exchange({"shown": dict(shown), "compared": {**shown, **compared}})
    refusals = [f"rank {rank}: {part['refused']}" for rank, part in enumerate(parts) if "refused" in part]
    if refusals:
        raise MismatchError(
            f"ParquetShards could not be made on {len(refusals)} of {len(parts)} ranks: {'; '.join(refusals)}"
        )
    for name in shown:
        if len({part["compared"].get(name) for part in parts}) > 1:
            values = [part["shown"].get(name) for part in parts]
            raise MismatchError(
                f"ParquetShards was given another {name} on some ranks: {_by_rank(values)}. Remedy: pass the same on "
                "all ranks, which deal the rows among themselves; a rank that is to read all of the data itself passes "
                "rank=0, size=1"
            )


def tell_refusal(error: Exception) -> None:
    """Let no other rank wait for this one in `check_alike`.

    Args:
        error: Why it could not make its part. The caller raises it, whatever has become of the others.
    """
    with contextlib.suppress(RingcoreError):
        _exchange({"refused": f"{type(error).__name__}: {error}"})


def _exchange(own: dict[str, object]) -> list[dict[str, dict[str, str]]]:
    # Who comes to an elastic job makes its own when the others have long made theirs.
    if not is_initialized() or context().size == 1 or context().settings.elastic:
        return []
    return [json.loads(part) for part in gather_bytes(json.dumps(own).encode(), context().next_name(_CALL))]


def _by_rank(values: list[str | None]) -> str:
    """Each value with its ranks."""
    ranks: dict[str | None, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    if len(ranks) == 1:
        return f"all have {values[0]}, and not the same files there"
    return "; ".join(f"rank{'s' if len(of) > 1 else ''} {', '.join(map(str, of))}: {v}" for v, of in ranks.items())
