"""What this rank refuses by itself, before it is submitted: the other ranks are told, and do not wait for it."""

from __future__ import annotations

from ringcore._errors import InvalidArgument
from ringcore._native import UnsupportedArray
from ringcore.job.process_sets import ProcessSet
from ringcore.job.state import context


class refusing:  # noqa: N801  a function with a block, and much quicker than one of contextlib's
    """While an operation is prepared that has its name: whatever is raised is told to the ranks that submit it.

    They raise the same at once, and unnamed operations are counted alike on all ranks. Not for the submission itself:
    what the engine refuses, it tells.

    Args:
        kind: The operation's, for messages.
        name: Identifies it on all ranks.
        process_set: The ranks that take part.
        tell: False: this rank would not have submitted it here and now.
    """

    __slots__ = ("_kind", "_name", "_process_set", "_tell")

    def __init__(self, kind: str, name: str, process_set: ProcessSet, *, tell: bool = True) -> None:
        self._kind, self._name, self._process_set, self._tell = kind, name, process_set, tell

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        # What is unsupported is not refused: a copy will do.
        if not isinstance(error, Exception) or isinstance(error, UnsupportedArray):
            return
        refused = isinstance(error, InvalidArgument)
        why = f"{title_of(self._kind, self._name)}: {'' if refused else f'{type(error).__name__}: '}{error}"
        if self._tell:
            refuse(why, self._name, self._process_set)
        if refused:
            raise InvalidArgument(why) from None


def refuse(why: str, name: str, process_set: ProcessSet) -> None:
    """Tell the ranks that submit an operation of this name that this rank does not: they raise it at once.

    Args:
        why: Goes into their messages.
        name: Identifies the operation on all ranks.
        process_set: The ranks that take part.
    """
    if process_set.process_set_id is not None:
        context().runtime.refuse(process_set.process_set_id, name, why)


def title_of(kind: str, name: str | None) -> str:
    """An operation, for messages."""
    return kind if name is None else f"{kind} '{name}'"
