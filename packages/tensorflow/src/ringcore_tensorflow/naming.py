"""How ranks recognise each other's operations: by names, which must be equal on all ranks.

In eager mode unnamed operations are counted, as they are everywhere in ringcore. In a graph that would go wrong: a rank
may trace a function more often than another one, for a last batch of its own shape. There, names depend on the function
alone: which one it is, and the how-manieth operation in it.
"""

from __future__ import annotations

import collections
import enum
import weakref
from typing import Any

import numpy as np
import tensorflow as tf
from ringcore.adapter import ProcessSet, name_or_next

# Of each graph that is being traced: how often a name was given out.
_given: weakref.WeakKeyDictionary[Any, collections.Counter[str]] = weakref.WeakKeyDictionary()


class Mode(enum.IntEnum):
    """Of the ops' attribute `mode`, which src/native/shim.cpp describes."""

    EAGER = 0
    NAMED = 1
    QUALIFIED = 2


def _outermost_graph() -> Any:
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and hasattr(graph.outer_graph, "outer_graph"):
        graph = graph.outer_graph
    return graph


def mode_of(name: str | None) -> Mode:
    """How the ops use the name of an operation; None: the caller gave it none."""
    return Mode.EAGER if tf.executing_eagerly() else Mode.QUALIFIED if name is None else Mode.NAMED


def text_of(name: str | None, kind: str, process_set: ProcessSet) -> str:
    """The name of an operation.

    Args:
        name: The caller's, or None.
        kind: Of the operation.
        process_set: In which unnamed operations are counted.
    """
    if name is not None:
        return name
    if tf.executing_eagerly():
        return name_or_next(None, f"tensorflow.{kind}", process_set)
    return once_in_graph(f"{getattr(_outermost_graph(), 'name', 'graph')}.{kind}")


def once_in_graph(name: str) -> str:
    """A name that is given out at most once in the graph that is being made: the second time it gets a number."""
    if tf.executing_eagerly():
        return name
    given = _given.setdefault(_outermost_graph(), collections.Counter())
    number = given[name]
    given[name] += 1
    return name if number == 0 else f"{name}.{number}"


def as_key(name: str) -> tf.Tensor:
    """A name as the ops take it: its bytes."""
    return tf.constant(np.frombuffer(name.encode(), np.uint8))


def key_of_gradient(key: tf.Tensor) -> tf.Tensor:
    """The name of the operation that the gradient of an operation is."""
    return tf.concat([key, as_key(".gradient")], 0)
