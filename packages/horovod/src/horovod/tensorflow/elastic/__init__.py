"""Elastic training: the names exist, so that scripts can be imported; using them says what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.common.elastic import refuse, unavailable

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]

_MODULE = "horovod.tensorflow.elastic"


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Horovod's decorator of an elastic training function; calling the function raises NotImplementedError."""
    return refuse(_MODULE, func)


class TensorFlowState:
    """Horovod's state of an elastic job; making one raises NotImplementedError."""

    def __init__(self, *_: Any, **__: Any) -> None:
        unavailable(_MODULE, "TensorFlowState")


class TensorFlowKerasState:
    """Horovod's state of an elastic job; making one raises NotImplementedError."""

    def __init__(self, *_: Any, **__: Any) -> None:
        unavailable(_MODULE, "TensorFlowKerasState")
