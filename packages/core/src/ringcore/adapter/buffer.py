"""Any array as (address, shape, dtype): what the engine works on. The only place that looks at foreign objects."""

from __future__ import annotations

import struct
import sys
from typing import Any

from ringcore import _native
from ringcore._errors import InvalidArgument
from ringcore._native import Buffer, Handle
from ringcore.adapter.device import DeviceArray, device_buffer, empty_on_device

_CONVERT = f"convert it to one of {', '.join(_native.DTYPES)}"
DTYPE_NAMES: dict[int, str] = {code: name for name, code in _native.DTYPES.items()}
_BFLOAT16: int = _native.DTYPES["bfloat16"]


def as_buffer(array: Any, *, writable: bool = False) -> Buffer:
    """Describe an array without copying it.

    Args:
        array: Anything that speaks the buffer protocol or DLPack and lies in host memory, a PyTorch tensor on a CUDA
            device, or what speaks the CUDA array interface.
        writable: Refuse memory that may not be written.

    Raises:
        InvalidArgument: Not an array, not contiguous, read-only, or of a dtype that the engine does not know.
    """
    try:
        buffer = _native.describe(array, writable)
    except TypeError:
        # numpy arrays of ml_dtypes.bfloat16 speak neither protocol; their bits do.
        on_device = device_buffer(array, writable=writable)
        if on_device is not None:
            return on_device
        if str(getattr(array, "dtype", "")) != "bfloat16":
            raise InvalidArgument(_refusal(array, writable)) from None
        try:
            buffer = _native.describe(array.view("uint16"), writable)
        except TypeError:
            raise InvalidArgument(_refusal(array, writable)) from None
        if buffer.contiguous:
            return Buffer(buffer.address, buffer.shape, _BFLOAT16, array)
    if buffer.dtype < 0:
        raise InvalidArgument(f"{_kind(array)} has {_dtype(array)} that cannot be reduced; {_CONVERT}")
    if not buffer.contiguous:
        raise InvalidArgument(
            f"{_kind(array)} of shape {list(buffer.shape)} is not contiguous; pass numpy.ascontiguousarray(x) and "
            "use the result"
        )
    return buffer


def empty_like(buffer: Buffer) -> Any:
    """A new uninitialised array of the same shape and dtype, where the other one lies."""
    return empty(buffer.shape, buffer.dtype) if buffer.device < 0 else empty_on_device(buffer)


def result_of(handle: Handle, shape: tuple[int, ...], source: Buffer, index: int = 0) -> Any:
    """What the engine has allocated for an operation on `source`, as an array."""
    if source.device < 0:
        return from_bytes(handle.result(index), shape, source.dtype)
    return DeviceArray(handle.device_result(index), shape, source.dtype, source.stream)


def empty(shape: tuple[int, ...], dtype: int) -> Any:
    """A new uninitialised array: numpy's where numpy is installed (bfloat16 needs ml_dtypes), else a memoryview."""
    name = DTYPE_NAMES[dtype]
    try:
        import numpy as np
    except ImportError:
        return memoryview(bytearray(_elements(shape) * _ITEM_BYTES[name])).cast("B").cast(_FORMATS[name], shape)
    if name == "bfloat16":
        import ml_dtypes

        return np.empty(shape, dtype=ml_dtypes.bfloat16)
    return np.empty(shape, dtype=name)


def from_bytes(view: memoryview, shape: tuple[int, ...], dtype: int) -> Any:
    """An array over memory that the engine allocated; the memory lives as long as the array."""
    name = DTYPE_NAMES[dtype]
    try:
        import numpy as np
    except ImportError:
        return view.cast("B").cast(_FORMATS[name], shape)
    if name == "bfloat16":
        import ml_dtypes

        return np.frombuffer(view, dtype=ml_dtypes.bfloat16).reshape(shape)
    return np.frombuffer(view, dtype=name).reshape(shape)


# What a memoryview can be cast to: the 16-bit floats only as their bits.
_FORMATS: dict[str, Any] = {
    "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "int32": "i", "int64": "q",
    "float16": "H", "bfloat16": "H", "float32": "f", "float64": "d", "bool": "?",
}  # fmt: skip
_ITEM_BYTES = {name: struct.calcsize(code) for name, code in _FORMATS.items()}


def nbytes_of(buffer: Buffer) -> int:
    """How large what it describes is."""
    return _elements(buffer.shape) * _ITEM_BYTES[DTYPE_NAMES[buffer.dtype]]


def _elements(shape: tuple[int, ...]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def _kind(array: object) -> str:
    kind = type(array)
    return f"{kind.__module__}.{kind.__qualname__}"


def _dtype(array: Any) -> str:
    return f"dtype {array.dtype}" if hasattr(array, "dtype") else "a dtype"


def _refusal(array: Any, writable: bool) -> str:
    flags = getattr(array, "flags", None)
    if writable and flags is not None and getattr(flags, "writeable", True) is False:
        return f"{_kind(array)} is read-only and cannot be changed in place; pass a writable copy"
    if isinstance(array, memoryview | bytes) and writable:
        return f"{_kind(array)} is read-only and cannot be changed in place; pass a bytearray or an array"
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.generic):
        return f"{_kind(array)} is a scalar; pass numpy.asarray(x)"
    if isinstance(array, int | float | complex | list | tuple):
        return f"{_kind(array)} is no array; pass numpy.asarray(x)"
    if numpy is not None and isinstance(array, numpy.ndarray):
        return f"the array has dtype {array.dtype}; {_CONVERT}"
    return (
        f"{_kind(array)} is no array that ringcore knows: in host memory it must speak the buffer protocol or DLPack, "
        "on a GPU the CUDA array interface, for a dtype that can be reduced"
    )
