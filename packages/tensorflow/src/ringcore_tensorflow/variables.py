"""Variables that begin alike on all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from ringcore.adapter import ProcessSet, global_process_set

from ringcore_tensorflow._graph import runs_in_session
from ringcore_tensorflow._operations import broadcast_


def broadcast_variables(
    variables: Iterable[Any], root_rank: int = 0, *, process_set: ProcessSet = global_process_set
) -> tf.Operation | None:
    """Give every rank's variables the root's values. Call it once all of them exist: after the first step.

    Args:
        variables: `tf.Variable`s, or Keras' variables; on every rank the same ones in the same order.
        root_rank: Rank whose values win.
        process_set: The ranks that take part.

    Returns:
        In a graph that a session runs: the operation that does so. Otherwise it is done, and there is nothing.

    Raises:
        MismatchError: Ranks have different variables. On every rank.
    """
    assigned = []
    for i, variable in enumerate(variables):
        value = tf.convert_to_tensor(variable)
        name = getattr(variable, "path", None) or getattr(variable, "name", "")
        label = f"broadcast_variables.{i}.{name}"
        if value.dtype == tf.string:
            continue  # a tokenizer's table: part of the program, not of what is learned
        assigned.append(broadcast_(variable, root_rank, name=label, process_set=process_set))
    return tf.group(*assigned) if runs_in_session() else None
