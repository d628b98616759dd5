"""Broadcasts of variables and objects, with Horovod's signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ringcore
import ringcore_tensorflow as ring
import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.errors import verb

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


@verb
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


def broadcast_global_variables(root_rank: int) -> Any:
    """An operation that gives all variables of a graph the root's values.

    Raises:
        RuntimeError: Eager mode has no list of all variables; the message gives the line to write.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "TensorFlow 2 keeps no list of all variables. Remedy: hvd.broadcast_variables(model.variables, "
            f"root_rank={root_rank}) after the first step, or in Keras the callback "
            f"hvd.callbacks.BroadcastGlobalVariablesCallback({root_rank})"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives all variables the root's values when a session of TensorFlow 1 begins.

    Args:
        root_rank: Rank whose values win.
        device: Unused.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        del device
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the operation to the graph."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        del coord
        session.run(self.bcast_op)
