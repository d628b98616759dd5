"""Arrays on GPUs whose type has DLPack's C exchange, as PyTorch's tensors have it."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import numpy as np

from support.gpu import GpuArray

_CUDA = 2
_FLOAT = 2


class _Tensor(ctypes.Structure):  # DLTensor
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32),
        ("dims", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_TENSOR_OF = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Tensor))
_STREAM_OF = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class _Exchange(ctypes.Structure):  # DLPackExchangeAPI
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p), ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p), ("tensor_from_object", _TENSOR_OF), ("current_stream", _STREAM_OF),
    )  # fmt: skip


class ExchangedArray:
    """A float32 array on this rank's GPU.

    Attributes:
        current: Handle of the stream that the "framework" works on at the moment.
    """

    current: ClassVar[int] = 0

    def __init__(self, values: np.ndarray, device: int) -> None:
        self.array = GpuArray(values.astype(np.float32))
        self.device = device
        self.shape = (ctypes.c_int64 * values.ndim)(*values.shape)


def _tensor_of(array: Any, target: Any) -> int:
    address, _ = array.array.__cuda_array_interface__["data"]
    shape = ctypes.cast(array.shape, ctypes.c_void_p)
    target[0] = _Tensor(address, _CUDA, array.device, len(array.shape), _FLOAT, 32, 1, shape, None, 0)
    return 0


def _stream_of(device_type: int, device: int, target: Any) -> int:
    target[0] = ExchangedArray.current
    return 0


_EXCHANGE = _Exchange(1, 3, None, None, None, None, _TENSOR_OF(_tensor_of), _STREAM_OF(_stream_of))
_NAME = b"dlpack_exchange_api"  # the capsule does not copy it
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
ExchangedArray.__dlpack_c_exchange_api__ = _new_capsule(  # type: ignore[attr-defined]
    ctypes.addressof(_EXCHANGE), _NAME, None
)
