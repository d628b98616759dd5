"""What has to be said to TensorFlow about our ops in its graphs. All that is not public of TensorFlow is here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf
from ringcore import InvalidArgument
from tensorflow.python.ops import control_flow_util

_Function = TypeVar("_Function", bound=Callable[..., Any])


def as_written(function: _Function) -> _Function:
    """Keep AutoGraph, which rewrites what a `tf.function` calls, out of a function: it has nothing to rewrite."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


def gradient_of(op: str) -> Callable[[_Function], _Function]:
    """Register the gradient of an op."""
    return cast(Callable[[_Function], _Function], tf.RegisterGradient(op))


def runs_in_session() -> bool:
    """Whether the graph that is being made is one for a session, which runs what it is asked for and nothing else.

    In a `tf.function` what has side effects runs, and in the order in which it was written.
    """
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and graph.experimental_acd_manager is None


def run_independently(result: Any) -> None:
    """Let the op that gave a result run though nobody uses it, as the other ranks count on it, but in no fixed order.

    Otherwise ops that nobody uses are dropped, or those with side effects wait for each other.
    """
    while isinstance(result, list | tuple):
        result = result[0]
    manager = tf.compat.v1.get_default_graph().experimental_acd_manager
    if manager is not None:
        manager.run_independently(getattr(result, "op", result))


def taken(now: Any, way: int, function: Callable[[list[Any]], list[Any]], tensors: list[Any]) -> list[Any]:
    """What a function makes of tensors where its way is the one that is taken; the tensors elsewhere.

    Args:
        now: The index of the way that is taken; in a graph possibly a tensor.
        way: The function's.
        function: Has one result for each tensor, of its kind.
        tensors: At least one.
    """
    if isinstance(now, int):
        return function(tensors) if now == way else tensors
    found: list[Any] = tf.cond(
        tf.equal(now, way), lambda: function(tensors), lambda: [tf.identity(tensor) for tensor in tensors]
    )
    run_independently(found[0].op.inputs[0])  # what has made it: `cond` returns copies
    return found


def refuse_xla(what: str) -> None:
    """Tell at once what would fail later, when XLA meets an op that it does not know.

    Raises:
        InvalidArgument: The graph is made for XLA.
    """
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise InvalidArgument(
            f"{what} is in a function with jit_compile=True, and XLA has no ops of ringcore. Remedy: "
            "tf.function(..., jit_compile=False), in Keras model.compile(..., jit_compile=False); parts without "
            "collectives may be compiled in functions of their own"
        )
