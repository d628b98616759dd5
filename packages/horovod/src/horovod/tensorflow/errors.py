"""Errors as scripts expect them from Horovod: exceptions of TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf
from ringcore import InvalidArgument, RingcoreError

_Function = TypeVar("_Function", bound=Callable[..., Any])


# Classes of exceptions that are one of TensorFlow's and one of ringcore's.
_both: dict[tuple[Any, Any], Any] = {}


def _as_tensorflow(error: RingcoreError) -> Exception:
    """The exception of ringcore, which is one of TensorFlow as well: the one that its op has given, if one has."""
    kind = type(error.__context__)
    if not issubclass(kind, tf.errors.OpError):
        refused = isinstance(error, InvalidArgument)
        kind = tf.errors.InvalidArgumentError if refused else tf.errors.FailedPreconditionError
    pair = kind, type(error)
    made: Exception = _both.setdefault(pair, type(type(error).__name__, pair, {}))(None, None, str(error))
    return made


def verb(function: _Function) -> _Function:
    """An operation of Horovod: what it raises in eager mode is also what its graphs raise.

    AutoGraph, which rewrites what a `tf.function` calls, has nothing to rewrite in it.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except RingcoreError as error:
            if isinstance(error, tf.errors.OpError):
                raise
            raise _as_tensorflow(error) from None

    return tf.autograph.experimental.do_not_convert(call)  # type: ignore[no-any-return]
