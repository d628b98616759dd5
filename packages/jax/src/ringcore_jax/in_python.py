"""Calls of a compiled program for the CPU that Python does, on arrays where they lie, on a thread of XLA.

They may wait for the other ranks: each runs behind the call before it and before the one behind it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ringcore_jax._calls import LIBRARY, for_library, lower_behind_the_last

_TARGET = "ringcore_exchange"

_calls: list[Any] = []  # Compiled programs outlive whoever made them.


def number_of(call: Callable[[Sequence[int]], None]) -> int:
    """The number by which a program asks for a call; it is handed the addresses of the arrays.

    A trace of the same step, which makes an equal call, has the same number.
    """
    if call not in _calls:
        _calls.append(call)
    return _calls.index(call)


def call_of(number: int) -> Any:
    """The call that has a number."""
    return _calls[number]


_InPlace = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_void_p,
    ctypes.c_size_t,
)  # fmt: skip


def _do(number: int, data: Any, count: int, message: int, capacity: int) -> int:
    return for_library(lambda: _calls[number]([data[i] or 0 for i in range(count)]), message, capacity)


_do_for_library = _InPlace(_do)  # as long as the library has it
LIBRARY.ringcore_jax_exchange_with(_do_for_library)
jax.ffi.register_ffi_target(
    _TARGET,
    jax.ffi.pycapsule(LIBRARY.ringcore_jax_exchange),  # type: ignore[no-untyped-call]
    platform="cpu",
)


def lower(context: Any, *operands: Any, number: int) -> Any:
    """What XLA is to do for a primitive whose results are what the call with this number makes of its operands."""
    aliases = {i: i for i in range(len(operands))}
    lowered = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True, operand_output_aliases=aliases)
    return lower_behind_the_last(lowered, context, operands, number=np.int64(number))
