"""Elastic training: `ringcore.elastic` under Horovod's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringcore.elastic import ObjectState, State, run

__all__ = ["ObjectState", "State", "run_fn"]


def run_fn(func: Callable[..., Any], *_: Any) -> Callable[..., Any]:
    """The training function, as `run` of a framework's `elastic` decorates it.

    Args:
        func: Takes a state, and whatever else.
        _: What Horovod calls to meet the ranks that are left; `ringcore.elastic.run` does it itself.
    """
    return run(func)
