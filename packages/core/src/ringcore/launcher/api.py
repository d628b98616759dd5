"""`ringcore.run`: call a function on several ranks, from Python or a notebook."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ringcore.launcher import outcomes
from ringcore.launcher._caller import Launcher
from ringcore.launcher._frames import Kind
from ringcore.launcher.outcomes import LaunchError, RankError

__all__ = ["LaunchError", "RankError", "run"]

T = TypeVar("T")
_OF_SEVERAL_WORDS = ("--blacklist-cooldown-range",)


def run(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = 2,
    *,
    env: Mapping[str, str] | None = None,
    executable: str | None = None,
    **options: Any,
) -> list[T]:
    """Call a function on several ranks at the same time and wait for all of them.

    Each rank is a new process (never a fork), also for a function from a notebook. What ranks print appears here.

    Args:
        fn: The function. One that was defined in a notebook, in `__main__` or inside another function needs
            cloudpickle; so do such arguments.
        args: Its arguments, the same on each rank.
        kwargs: Its keyword arguments.
        np: Number of ranks. `None` takes all slots of `hosts`.
        env: Variables for the ranks.
        executable: Python interpreter of the ranks; `None` is this one.
        **options: Options of ringrun with underscores: `hosts="a:2,b:2"`, `timeout_s=60`, `verbose=True`. With
            `min_np` the job is elastic: ranks come and go while the function runs, see `ringcore.elastic`.

    Returns:
        What the function returned, in the order of ranks; of an elastic job on those that are there at its end.

    Raises:
        RankError: The function raised, or a rank was killed. The exception itself is its `original`, if it could be
            pickled.
        LaunchError: No rank was started, or one ended without a result.
        TypeError: The function cannot be called, it or its arguments cannot be pickled, or an option does not exist.
    """
    call = call_of(fn, args, kwargs)
    argv = _command_line(np, env, executable or sys.executable, options)
    with Launcher(argv) as launcher:
        launcher.send(Kind.JOB, call)
        return launcher.results()


def call_of(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bytes:
    """What `worker` calls, with the places that this process imports from."""
    outcomes.check_call(fn, args)
    function = outcomes.dump_call(fn, tuple(args), dict(kwargs or {}))
    return pickle.dumps({"path": [entry or os.getcwd() for entry in sys.path], "function": function})


def _command_line(
    np: int | None, env: Mapping[str, str] | None, executable: str, options: Mapping[str, Any]
) -> list[str]:
    from ringcore.launcher import _options

    known = _options.known_options()
    words = [] if np is None else ["-np", str(np)]
    for name, value in (env or {}).items():
        words += ["-x", f"{name}={value}"]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            negated = "--no-" + option[2:]
            # What is off unless asked for needs no word.
            words += [option] if value else [negated] if negated in known or option not in known else []
        elif isinstance(value, (str, int, float)):
            words.append(f"{option}={value}")
        elif isinstance(value, (list, tuple)):
            texts = list(map(str, value))
            words += [option, *texts] if option in _OF_SEVERAL_WORDS else [f"{option}={','.join(texts)}"]
        else:
            raise TypeError(f"option {name} is {value!r}, but a text, a number, a list or True is needed")
    words += ["--no-python", executable, "-m", "ringcore.launcher.worker"]
    try:
        _options.parse(words, {})
    except _options.UsageError as error:
        raise TypeError(f"ringcore.run: {error}") from None
    return words
