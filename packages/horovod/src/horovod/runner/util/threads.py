"""Threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start a thread.

    Args:
        target: What it runs.
        args: Its arguments; a tuple.
        name: Of the thread.
        daemon: The process does not wait for it.
        silent: Drop what it raises.
    """
    if not isinstance(args, tuple):
        raise ValueError("args must be a tuple, not " + type(args).__name__)

    def quiet(*given: Any) -> None:
        try:
            target(*given)
        except Exception:  # noqa: S110 - that is what was asked for
            pass

    thread = threading.Thread(target=quiet if silent else target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread
