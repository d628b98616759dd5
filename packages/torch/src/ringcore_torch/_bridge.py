"""Tensors as buffers of the engine, and back."""

from __future__ import annotations

from typing import Any

import torch
from ringcore import InvalidArgument
from ringcore.adapter import DTYPE_CODES, Buffer, DeviceArray, Handle

CODES: dict[torch.dtype, int] = {
    torch.uint8: DTYPE_CODES["uint8"],
    torch.int8: DTYPE_CODES["int8"],
    torch.uint16: DTYPE_CODES["uint16"],
    torch.int16: DTYPE_CODES["int16"],
    torch.int32: DTYPE_CODES["int32"],
    torch.int64: DTYPE_CODES["int64"],
    torch.float16: DTYPE_CODES["float16"],
    torch.bfloat16: DTYPE_CODES["bfloat16"],
    torch.float32: DTYPE_CODES["float32"],
    torch.float64: DTYPE_CODES["float64"],
    torch.bool: DTYPE_CODES["bool"],
}


def as_buffer(tensor: torch.Tensor) -> Buffer:
    """Describe a contiguous tensor in host memory or on a CUDA device; the buffer keeps it alive.

    The engine looks at tensors itself, through DLPack, and far quicker. This is for versions of torch whose tensors it
    cannot look at, and tells what is wrong with a tensor that it refuses.

    Raises:
        InvalidArgument: It is on another device, sparse, or of a dtype that cannot be reduced.
    """
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"a tensor of PyTorch is needed, not {type(tensor).__name__}")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise InvalidArgument(
            f"the tensor is on {tensor.device}, and this version of ringcore works on tensors of the CPU and of CUDA "
            "devices; pass tensor.cpu() and copy the result back"
        )
    if tensor.layout is not torch.strided:
        raise InvalidArgument(f"the tensor has layout {tensor.layout}; pass tensor.to_dense()")
    code = CODES.get(tensor.dtype)
    if code is None:
        raise InvalidArgument(f"the tensor has dtype {tensor.dtype}; convert it to one of {', '.join(DTYPE_CODES)}")
    if tensor.numel() > 0 and tensor.data_ptr() == 0:
        raise InvalidArgument(f"a {type(tensor).__name__} has no memory of its own; pass the tensor that it stands for")
    if tensor.is_cuda:
        stream = torch.cuda.current_stream(tensor.device).cuda_stream
        return Buffer(tensor.data_ptr(), tuple(tensor.shape), code, tensor, tensor.device.index, stream)
    return Buffer(tensor.data_ptr(), tuple(tensor.shape), code, tensor)


def as_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its values as they are in a row of memory: a copy, where they are not."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def copy_back(source: torch.Tensor, target: torch.Tensor) -> None:
    """Give a tensor what has come to a copy of it, which nobody needs any more."""
    target.detach().copy_(source)
    if source.is_cuda:  # it was made in the stream that submitted it, which may not be this one
        source.record_stream(torch.cuda.current_stream(source.device))


def as_moved(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor for an operation that only moves it: as bytes, where the engine does not know the dtype."""
    if tensor.dtype in CODES or not (tensor.is_cpu or tensor.is_cuda):  # of other devices `as_buffer` tells
        return tensor
    return tensor.view(-1).view(torch.uint8)


def from_bytes(view: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor over host memory that the engine allocated; the memory lives as long as the tensor."""
    if memoryview(view).nbytes == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(view, dtype=dtype).reshape(shape)


def result_of(handle: Handle, shape: tuple[int, ...], like: torch.Tensor, index: int = 0) -> torch.Tensor:
    """A tensor over memory that the engine allocated for an operation on `like`; the memory lives as long as it."""
    if not like.is_cuda:
        return from_bytes(handle.result(index), shape, like.dtype)
    memory = handle.device_result(index)  # belongs to the stream that waited: the current one
    if memory.nbytes == 0:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    shown = DeviceArray(memory, (memory.nbytes,), DTYPE_CODES["uint8"], 0)
    return torch.as_tensor(shown, device=like.device).view(like.dtype).reshape(shape)


class Tensors:
    """Strided tensors in host memory and on CUDA devices. See `adapter.Framework`."""

    def as_buffer(self, tensor: torch.Tensor, *, writable: bool = False) -> Buffer:
        """See `adapter.Framework`."""
        return as_buffer(tensor)

    def as_moved(self, tensor: torch.Tensor, *, writable: bool = False) -> Buffer:
        """See `adapter.Framework`."""
        return as_buffer(as_moved(tensor))

    def as_output(self, tensor: torch.Tensor) -> Buffer:
        """See `adapter.Framework`."""
        buffer = as_buffer(tensor)
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
            raise InvalidArgument(
                f"the tensor of shape {list(tensor.shape)} is not contiguous, and a result is written in a row; pass "
                "one of torch.empty"
            )
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise InvalidArgument("the tensor requires a gradient; pass tensor.detach(), or call under torch.no_grad()")
        return buffer

    def contiguous(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `adapter.Framework`."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            as_buffer(tensor)  # tells why not
        return as_contiguous(tensor)

    def copy_back(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """See `adapter.Framework`."""
        if source.data_ptr() != target.data_ptr():
            copy_back(source, target)

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `adapter.Framework`."""
        return torch.empty_like(tensor)

    def result_of(self, handle: Handle, shape: tuple[int, ...], source: Buffer, index: int) -> torch.Tensor:
        """See `adapter.Framework`."""
        like: Any = source.owner
        return result_of(handle, shape, like, index)

    def row_counts(self, rows: list[int], splits: Any) -> torch.Tensor:
        """See `adapter.Framework`; they are on the device of the splits, where those are a tensor."""
        return torch.tensor(rows, dtype=torch.int32, device=getattr(splits, "device", "cpu"))
