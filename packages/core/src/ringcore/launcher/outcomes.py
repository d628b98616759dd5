"""What became of a function that was called on a rank, on its way to whoever asked for it."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

from ringcore._objects import pickled, unpickle


class RankError(RuntimeError):
    """The function failed on a rank.

    Attributes:
        rank: The rank that failed first.
        remote_traceback: Its traceback, as text; empty if it was killed.
        original: The exception itself, where it can be pickled.
    """

    def __init__(
        self, rank: int, message: str, remote_traceback: str = "", original: BaseException | None = None
    ) -> None:
        """Make an error about a rank.

        Args:
            rank: The rank.
            message: What went wrong.
            remote_traceback: Where.
            original: What the function raised there.
        """
        super().__init__(message + (f"\n\nOn rank {rank}:\n{remote_traceback}" if remote_traceback else ""))
        self.rank = rank
        self.remote_traceback = remote_traceback
        self.original = original


class LaunchError(RuntimeError):
    """The ranks could not be started, or ended without a result; the message holds what the launcher said."""


class Raised(NamedTuple):
    """An exception of a rank, as far as another process can have it.

    Attributes:
        kind: Name of its class.
        message: Its text.
        traceback: As Python prints it.
        data: The exception itself, where it can be pickled.
        lost_rank: The rank whose end made this one fail.
    """

    kind: str
    message: str
    traceback: str
    data: bytes | None
    lost_rank: int | None


def check_call(fn: Any, args: Any) -> None:
    """Refuse what is no call before anything starts.

    Raises:
        TypeError: The function cannot be called, or its arguments are no sequence.
    """
    if not callable(fn):
        raise TypeError(
            f"what the ranks are to call is a {type(fn).__name__}, and no function: give the function itself, and its "
            "arguments apart from it, as in fn=train, args=[100]"
        )
    if isinstance(args, (str, bytes)) or not isinstance(args, Iterable):
        raise TypeError(f"args={args!r} is no list of arguments: give args=[{args!r}]")


def dump_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Pickle a call for the ranks.

    Raises:
        TypeError: The function or its arguments cannot be pickled, or the ranks could not import it.
    """
    try:
        function = pickled((fn, args, kwargs))
        by_name = getattr(fn, "__module__", None) == "__main__" and not _has_cloudpickle()
    except Exception as error:
        advice = "" if _has_cloudpickle() else "; cloudpickle can do more: pip install cloudpickle"
        culprit = _culprit(fn, args, kwargs)
        raise TypeError(f"the function or its arguments cannot be pickled{culprit}: {error}{advice}") from error
    if by_name:
        raise TypeError(
            f"{getattr(fn, '__qualname__', fn)} is defined in __main__ (a notebook or a script), where ranks cannot "
            "import it from: pip install cloudpickle, or move it into a module"
        )
    return function


def _has_cloudpickle() -> bool:
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        return False
    return True


def _culprit(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Names the variable or argument that cannot be pickled, if it is one."""
    import inspect

    try:
        closure = inspect.getclosurevars(fn)
        used = {**closure.globals, **closure.nonlocals}
    except TypeError:  # not a function of Python
        used = {}
    candidates = [
        *((f"argument {index}", value) for index, value in enumerate(args)),
        *((f"argument {name}", value) for name, value in kwargs.items()),
        *((f"variable {name!r}, which {getattr(fn, '__name__', 'it')} uses", value) for name, value in used.items()),
    ]
    for name, value in candidates:
        try:
            pickled(value)
        except Exception:
            return f" because of {name}"
    return ""


def outcome_of(error: BaseException) -> Raised:
    """What to tell of an exception that is being handled on a rank."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    data: bytes | None
    try:
        data = pickled(error)
        unpickle(data)  # Many exceptions can be pickled and not read back.
    except Exception:
        data = None
    return Raised(type(error).__name__, str(error), text, data, _lost_rank())


def _lost_rank() -> int | None:
    """The rank whose end made an operation of this one fail."""
    state = sys.modules.get("ringcore.job.state")
    return state.context().runtime.lost_rank if state is not None and state.is_initialized() else None


def first_cause(raised: Mapping[int, Raised]) -> int:
    """The rank to blame: the first that failed by itself, rather than because of another."""
    return next((rank for rank, value in raised.items() if value.lost_rank is None), next(iter(raised)))


def raise_first(raised: Mapping[int, Raised]) -> NoReturn:
    """Raise what the rank to blame has raised.

    Args:
        raised: Of the ranks that failed, in the order of blame.

    Raises:
        RankError: Always.
    """
    rank = first_cause(raised)
    kind, message, text, data, _ = raised[rank]
    original = None
    if data is not None:
        with contextlib.suppress(Exception):  # Its class cannot be imported here; the text tells.
            original = unpickle(data)
    # Not as its cause, and without the end of the traceback, which is the message: Python shows the exception once.
    at = text.rpartition(f"{kind}: {message}")[0].rpartition("\n")[0] or text
    raise RankError(rank, f"rank {rank} raised {kind}: {message}", at, original)
