"""Elastic training: the names exist, so that scripts can be imported; using them says what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["ElasticSampler", "TorchState", "run"]


def _unavailable(name: str) -> NoReturn:
    raise NotImplementedError(
        f"horovod.torch.elastic.{name}: jobs of a changing number of ranks are not supported by this version of "
        "ringcore. Remedy: train with a fixed number of ranks, save checkpoints, and start again after a failure"
    )


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Horovod's decorator of an elastic training function; calling the function raises NotImplementedError."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        _unavailable(f"run({getattr(func, '__name__', 'function')})")

    return refuse


class TorchState:
    """Horovod's state of an elastic job; making one raises NotImplementedError."""

    def __init__(self, *_: Any, **__: Any) -> None:
        _unavailable("TorchState")


class ElasticSampler:
    """Horovod's sampler of an elastic job; making one raises NotImplementedError."""

    def __init__(self, *_: Any, **__: Any) -> None:
        _unavailable("ElasticSampler")
