"""TensorFlow in eager mode: ringcore_tensorflow.

Its tensors cannot be written, so that what is in place works on variables; and an op that is started and waited for is
one that another thread calls.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import ringcore_tensorflow as ring
import tensorflow as tf
from ringcore.adapter import name_or_next

dtypes = (
    "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool",
)  # fmt: skip

KINDS = (
    "allreduce", "grouped_allreduce", "allgather", "broadcast", "reducescatter", "alltoall", "reduce", "gather",
    "scatter",
)  # fmt: skip

_threads = ThreadPoolExecutor(max_workers=128)


def tensor(array: np.ndarray) -> tf.Variable:
    return tf.Variable(array)


def array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.numpy())


def collectives_of(calls: Any) -> Any:
    """The forms that all adapters share, made of the plain ones."""

    def assigning(call: Callable[..., Any]) -> Callable[..., Any]:
        def assign(target: Any, *args: Any, **options: Any) -> Any:
            results = call(target, *args, **options)
            for variable, result in zip(
                target if isinstance(target, list) else [target],
                results if isinstance(target, list) else [results],
                strict=True,
            ):
                variable.assign(result)
            return target

        return assign

    def starting(kind: str, call: Callable[..., Any]) -> Callable[..., Future[Any]]:
        def start(*args: Any, name: str | None = None, **options: Any) -> Future[Any]:
            # The order of the calls decides about names, so it must be this thread's.
            name = name_or_next(name, f"conformance.{kind}", options.get("process_set"))
            return _threads.submit(call, *args, name=name, **options)

        return start

    made = types.SimpleNamespace(
        **{name: getattr(ring, name) for name in ("add_process_set", "remove_process_set", "join", "barrier")},
        broadcast_object=ring.broadcast_object,
        allgather_object=ring.allgather_object,
        Compression=ring.Compression,
        synchronize=Future.result,
        poll=Future.done,
    )
    for kind in KINDS:
        call = getattr(calls, kind)
        setattr(made, kind, call)
        setattr(made, f"{kind}_async", starting(kind, call))
        setattr(made, f"{kind}_", assigning(call))
        setattr(made, f"{kind}_async_", starting(kind, assigning(call)))
    return made


collectives = collectives_of(ring)
