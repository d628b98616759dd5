"""Objects between ranks, with Horovod's signatures."""

from __future__ import annotations

from typing import Any

import ringcore
from ringcore import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object, on every rank."""
    return ringcore.broadcast_object(obj, root_rank, name=name, process_set=process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, in the order of the ranks."""
    return ringcore.allgather_object(obj, name=name, process_set=process_set)
