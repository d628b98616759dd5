"""The compiled half: tasks in MXNet's engine, connected with ringcore's."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import ringcore
from mxnet.base import _LIB, MXNetError
from ringcore import RingcoreError, adapter

_LIBRARY = Path(__file__).with_name("libringcore_mxnet.so")


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_LIBRARY))
    library.ringcore_mxnet_error.restype = ctypes.c_char_p
    library.ringcore_mxnet_connect.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    handles = ctypes.POINTER(ctypes.c_void_p)
    library.ringcore_mxnet_push.argtypes = [
        ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
        ctypes.c_double, ctypes.c_double, ctypes.c_int, ctypes.c_size_t, handles, ctypes.c_size_t, handles,
        ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint64),
    ]  # fmt: skip
    library.ringcore_mxnet_round.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    if library.ringcore_mxnet_connect(adapter.capi(), _LIB._name.encode()) != 0:
        raise ImportError(
            f"ringcore-mxnet works with MXNet 1.9.1, not with {mx.__version__}: "
            f"{library.ringcore_mxnet_error().decode()}. Remedy: pip install mxnet==1.9.1"
        )
    return library


_library = _load()
_push = _library.ringcore_mxnet_push


def _handles(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*[array.handle.value for array in arrays])


def push(
    collective: int, name: str, inputs: Sequence[Any], outputs: Sequence[Any] = (), *, op: int = 0, root: int = 0,
    process_set: int = 0, priority: int = 0, prescale: float = 1.0, postscale: float = 1.0,
    compression: int = 0, splits: Sequence[int] | None = None,
) -> None:  # fmt: skip
    """Give MXNet's engine a collective; returns before it has begun.

    Args:
        collective: Its code.
        name: The same on all ranks.
        inputs: Arrays that are read; changed in place where there are no outputs.
        outputs: Arrays that are written. Elsewhere than on the root of a reduce or a gather, an empty one.
        op: Code of the reduction.
        root: Of a broadcast, reduce, gather or scatter: its index in the process set.
        process_set: The engine's number of it.
        priority: The larger, the sooner; on the CPU, and not over MPI, it overtakes what has begun.
        prescale: Multiplied into the inputs of a reduction.
        postscale: Multiplied into its results.
        compression: Of an allreduce: the engine's code of how it may be sent between hosts.
        splits: Of an alltoall, and of a scatter on its root: rows for each rank.

    Raises:
        RingcoreError: It was refused. What goes wrong later is raised by whoever waits for the arrays.
    """
    key = name.encode()
    rows = None if splits is None else (ctypes.c_uint64 * len(splits))(*splits)
    if _push(
        collective, key, len(key), op, root, process_set, priority, prescale, postscale, compression, len(inputs),
        _handles(inputs), len(outputs), _handles(outputs), 0 if splits is None else len(splits), rows,
    ):  # fmt: skip
        raise _refusal()


def round_to_bfloat16(source: Any, target: Any) -> None:
    """Give MXNet's engine a conversion to the nearest values; returns before it has begun.

    Args:
        source: Of float32.
        target: Of bfloat16, and of the same shape.

    Raises:
        RingcoreError: It was refused.
    """
    if _library.ringcore_mxnet_round(source.handle, target.handle):
        raise _refusal()


def _refusal() -> Exception:
    text: str = _library.ringcore_mxnet_error().decode()
    return adapter.as_ringcore_error(RuntimeError(text)) or RuntimeError(text)


def _let_errors_through() -> None:
    """Let MXNet raise ringcore's exceptions, out of `waitall`, `wait_to_read`, `asnumpy` and whatever else waits.

    MXNet passes on a text that begins with the name of an exception, and has a table of those.
    """
    for kind in vars(ringcore).values():
        if isinstance(kind, type) and issubclass(kind, RingcoreError):
            both = type(kind.__name__, (kind, MXNetError), {"__module__": __name__, "__doc__": kind.__doc__})
            mx.error.register(kind.__name__)(_raiser(both))


def _raiser(kind: type[Exception]) -> Any:
    def make(text: str) -> Exception:
        return kind(text.removeprefix(f"{kind.__name__}: "))

    return make


def _finish_tasks() -> None:
    """What has been begun needs this rank."""
    try:
        mx.nd.waitall()
    except Exception as error:
        warnings.warn(f"an operation whose result nobody waited for has failed: {error}", RuntimeWarning, stacklevel=1)


_let_errors_through()
adapter.before_shutdown.append(_finish_tasks)
