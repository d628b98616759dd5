"""What stands in for elastic training, which ringcore has not: the names exist, and say what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def unavailable(module: str, name: str) -> NoReturn:
    """Say it.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        f"{module}.{name}: jobs of a changing number of ranks are not supported by this version of "
        "ringcore. Remedy: train with a fixed number of ranks, save checkpoints, and start again after a failure"
    )


def refuse(module: str, function: Callable[..., Any]) -> Callable[..., NoReturn]:
    """A function that says so when it is called."""

    def call(*_: Any, **__: Any) -> NoReturn:
        unavailable(module, f"run({getattr(function, '__name__', 'function')})")

    return call
