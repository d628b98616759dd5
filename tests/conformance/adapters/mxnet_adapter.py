"""MXNet's arrays of `mx.np`: ringcore_mxnet. Every call is asynchronous; who wants the values waits for them."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import ringcore_mxnet as ring
from mxnet import np as mxnp
from mxnet import npx

npx.set_np()
dtypes = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool")


def tensor(array: np.ndarray) -> Any:
    return mxnp.array(array, dtype=array.dtype)


def array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.asnumpy())


def _wait(result: Any) -> Any:
    for part in result if isinstance(result, list | tuple) else [result]:
        if part is not None:  # of what one rank alone gets
            part.wait_to_read()
    return result


def _waiting(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: _wait(call(*args, **options))


def _alltoall(*args: Any, **options: Any) -> Any:
    result = ring.alltoall(*args, **options)
    return (result[0], result[1].asnumpy()) if isinstance(result, tuple) else result


def collectives_of() -> Any:
    """Both forms that all adapters share."""
    made = types.SimpleNamespace(
        **{name: getattr(ring, name) for name in ("add_process_set", "remove_process_set", "join", "barrier")},
        broadcast_object=ring.broadcast_object,
        allgather_object=ring.allgather_object,
        Compression=ring.Compression,
        synchronize=_wait,
    )
    names = (
        "allreduce", "grouped_allreduce", "allgather", "grouped_allgather", "broadcast", "reducescatter", "alltoall",
        "reduce", "gather", "scatter",
    )  # fmt: skip
    for name in (*names, "allreduce_", "grouped_allreduce_", "broadcast_"):
        call = getattr(ring, name)
        setattr(made, name, _waiting(call))
        setattr(made, f"{name.rstrip('_')}_async{'_' if name.endswith('_') else ''}", call)
    made.alltoall = _alltoall
    return made


collectives = collectives_of()
