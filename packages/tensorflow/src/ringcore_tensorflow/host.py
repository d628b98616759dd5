"""Calls of Python with the values of tensors: at once in eager mode, when it runs in a `tf.function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from ringcore import InvalidArgument

from ringcore_tensorflow._graph import refuse_xla, runs_in_session


def on_host(who: str, function: Callable[..., list[Any]], tensors: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """What Python makes of tensors.

    TensorFlow makes such calls in the order of the program.

    Args:
        who: Calls, in the words of the user.
        function: Takes an array for each tensor, and gives one for each of `like`.
        tensors: Its arguments.
        like: What has the dtypes and shapes of the results.

    Raises:
        InvalidArgument: The graph is made for XLA, or for a session, which would call nothing that nobody asks for.
    """
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(found) for found in function(*(tensor.numpy() for tensor in tensors))]
    refuse_xla(who)
    if runs_in_session():
        raise InvalidArgument(f"{who} is in a graph for a session; call it in eager mode or in a tf.function")
    found = tf.numpy_function(function, tensors, [tf.as_dtype(each.dtype) for each in like]) if like else []
    return [tf.ensure_shape(each, one.shape) for each, one in zip(found, like, strict=True)]
