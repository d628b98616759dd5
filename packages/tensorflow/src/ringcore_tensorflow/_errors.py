"""The exceptions of ringcore, out of those of TensorFlow.

An op can only give TensorFlow a code and a text. The text begins with the name of ringcore's exception.
"""

from __future__ import annotations

import re

import ringcore
from ringcore import RingcoreError

_TEXT = re.compile(r"\b(\w+(?:Error|Argument)): (.*?)(?:\n\t ?\[\[|\n\d+ |\s*\[Op:|\Z)", re.DOTALL)


def as_ringcore_error(error: Exception) -> RingcoreError | None:
    """The exception of ringcore that an exception of TensorFlow tells of; None if it tells of none.

    `except tf.errors.OpError as error: raise ring.as_ringcore_error(error) or error` turns what a `tf.function` raises
    into what eager collectives raise.

    Args:
        error: What a `tf.function` with collectives in it has raised, when it was traced or when it ran.
    """
    if isinstance(error, RingcoreError):
        return error
    if not type(error).__module__.startswith("tensorflow."):
        return None
    for name, text in _TEXT.findall(str(error)):
        kind = getattr(ringcore, name, None)
        if isinstance(kind, type) and issubclass(kind, RingcoreError):
            return kind(text.strip())
    return None
