"""Broadcasts of variables and objects, with Horovod's signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import ringcore
import ringcore_tensorflow as ring
from ringcore import ProcessSet, global_process_set

__all__ = [
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


def broadcast_variables(
    variables: Any, root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """`ringcore_tensorflow.broadcast_variables`."""
    del inplace
    return ring.broadcast_variables(variables, root_rank, process_set=process_set)


def broadcast_object(
    obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """The root's object, on every rank."""
    del session
    return ringcore.broadcast_object(obj, root_rank, name=name, process_set=process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function that broadcasts objects from a root."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's object, in the order of the ranks."""
    del session
    return ringcore.allgather_object(obj, name=name, process_set=process_set)


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """TensorFlow 2 has no global variables.

    Raises:
        RuntimeError: Always; it gives the line to write.
    """
    raise RuntimeError(
        "TensorFlow 2 keeps no list of all variables. Remedy: hvd.broadcast_variables(model.variables, "
        f"root_rank={root_rank}) after the first step, or in Keras the callback "
        f"hvd.callbacks.BroadcastGlobalVariablesCallback({root_rank})"
    )
