"""TensorFlow: every collective inside a `tf.function`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import ringcore_tensorflow as ring
import tensorflow as tf

from conformance.adapters.tensorflow_adapter import KINDS, array, collectives_of, tensor

__all__ = ["array", "collectives", "tensor"]

# Each dtype and shape is traced anew, which takes longer than to run it.
dtypes = ("int32", "bfloat16", "float32")


def _traced(kind: str) -> Callable[..., Any]:
    @functools.cache
    def function(root: tuple[int, ...], options: tuple[tuple[str, Any], ...]) -> Any:
        return tf.function(
            lambda value, *more: getattr(ring, kind)(value, *root, *more, **dict(options)), reduce_retracing=False
        )

    def call(value: Any, *more: Any, **options: Any) -> Any:
        root = tuple(item for item in more if isinstance(item, int))
        rest = [item for item in more if not isinstance(item, int)]
        return function(root, tuple(sorted(options.items(), key=lambda item: item[0])))(value, *rest)

    return call


collectives = collectives_of(types.SimpleNamespace(**{kind: _traced(kind) for kind in KINDS}))
