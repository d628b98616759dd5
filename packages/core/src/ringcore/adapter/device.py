"""Arrays on GPUs: what others show by `__cuda_array_interface__`, and what ringcore allocates."""

from __future__ import annotations

from typing import Any

from ringcore import _native
from ringcore._errors import InvalidArgument
from ringcore._native import Buffer

_TYPES = {
    "uint8": "|u1", "int8": "|i1", "uint16": "<u2", "int16": "<i2", "int32": "<i4", "int64": "<i8",
    "float16": "<f2", "bfloat16": "<V2", "float32": "<f4", "float64": "<f8", "bool": "|b1",
}  # fmt: skip
_CODES = {text: _native.DTYPES[name] for name, text in _TYPES.items()}
_NAMES = {code: name for name, code in _native.DTYPES.items()}


class DeviceArray:
    """A contiguous array on a GPU that ringcore has allocated.

    It speaks the CUDA array interface (version 3): `cupy.asarray(x)`, `torch.as_tensor(x, device="cuda")` and
    `numba.cuda.as_cuda_array(x)` use its memory without a copy.

    Attributes:
        shape: Extents, outermost first.
        dtype: Name of the dtype, such as "float32". The interface has none for bfloat16: it shows 2 bytes ("<V2").
        device: Number of the GPU.
        stream: Handle of the CUDA stream in which the values are made: what uses them on another one waits for it.
    """

    def __init__(self, memory: _native.DeviceMemory, shape: tuple[int, ...], dtype: int, stream: int) -> None:
        self._memory = memory
        self.shape = shape
        self.dtype = _NAMES[dtype]
        self.device = memory.device
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": _TYPES[self.dtype], "data": (self._memory.address, False),
            "strides": None, "version": 3, "stream": self.stream or 1,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"


def device_buffer(array: Any, *, writable: bool) -> Buffer | None:
    """Describe an array that speaks the CUDA array interface; None: it does not.

    Raises:
        InvalidArgument: Not contiguous, read-only, of a dtype that cannot be reduced, or CUDA does not know its memory.
    """
    shown = getattr(array, "__cuda_array_interface__", None)
    if shown is None:
        return None
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    code = _CODES.get(shown["typestr"])
    if code is None:
        raise InvalidArgument(
            f"{kind} has a dtype ({shown['typestr']}) that cannot be reduced; convert it to one of {', '.join(_TYPES)}"
        )
    shape = tuple(shown["shape"])
    address, read_only = shown["data"]
    if read_only and writable:
        raise InvalidArgument(f"{kind} is read-only and cannot be changed in place; pass a writable copy")
    strides = shown.get("strides")
    if strides is not None and 0 not in shape and tuple(strides) != _strides(shape, int(shown["typestr"][2:])):
        raise InvalidArgument(f"{kind} of shape {list(shape)} is not contiguous; pass a contiguous copy")
    device = getattr(array, "device", None) if isinstance(array, DeviceArray) else None
    if device is None:
        # An array of no elements has no memory whose place could be asked for.
        device = _native.device_of(address) if address else _native.current_device()
    return Buffer(address, shape, code, array, device, shown.get("stream") or 0)


def empty_on_device(like: Buffer) -> DeviceArray:
    """A new uninitialised array beside another one, in its stream."""
    count = 1
    for extent in like.shape:
        count *= extent
    nbytes = count * int(_TYPES[_NAMES[like.dtype]][2:])
    return DeviceArray(_native.DeviceMemory(like.device, nbytes, like.stream), like.shape, like.dtype, like.stream)


def _strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    strides = [item_bytes]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides[: len(shape)]))
