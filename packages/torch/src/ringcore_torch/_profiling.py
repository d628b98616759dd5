"""Operations as PyTorch's profiler sees them: `ringcore::allreduce_` and so on, while it is active."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def seen(function: _Function) -> _Function:
    """Let the profiler see the calls of a function. Without one that is active this only asks for it."""
    name = f"ringcore::{function.__name__}"

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if not _profiler_enabled():
            return function(*args, **options)
        with torch.profiler.record_function(name):
            return function(*args, **options)

    return call  # type: ignore[return-value]
