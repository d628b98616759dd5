"""Errors of ringcore that a framework tells of in its own."""

from __future__ import annotations

import re

from ringcore import _errors
from ringcore._errors import MembershipChangedError, RingcoreError
from ringcore.job.members import take_note

# The name of an exception and its text, up to what TensorFlow puts behind it; of one of Python that is its traceback.
_TOLD = re.compile(r"\b(\w+): (.*?)(?:\n\t ?\[\[|\s*\[Op:|\nTraceback \(most recent|\Z)", re.DOTALL)


def as_ringcore_error(error: Exception) -> RingcoreError | None:
    """The exception of ringcore that an exception of a framework tells of.

    An operation that a framework has compiled can only give it a text to raise; the text has the exception's name.

    Args:
        error: What the framework has raised.

    Returns:
        `error` itself if it is ringcore's, None if it tells of none.
    """
    if isinstance(error, MembershipChangedError):
        take_note()  # the framework has made it of a text itself
    if isinstance(error, RingcoreError):
        return error
    text = str(error)
    while (told := _TOLD.search(text)) is not None:
        kind = getattr(_errors, told[1], None)
        if isinstance(kind, type) and issubclass(kind, RingcoreError):
            if kind is MembershipChangedError:
                take_note()
            return kind(told[2].strip())
        text = text[told.end(1) :]
    return None
