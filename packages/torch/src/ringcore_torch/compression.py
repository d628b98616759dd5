"""Fewer bytes on the wire: tensors are sent as 16-bit floats. Sums are made in float32 and rounded once."""

from __future__ import annotations

import torch


class Compressor:
    """Sends tensors as they are. Subclasses change `wire_dtype`."""

    wire_dtype: torch.dtype | None = None

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """The tensor as it is sent, and what `decompress` needs to know."""
        if cls.wire_dtype is None or tensor.dtype not in (torch.float32, torch.float64):
            return tensor, None
        return tensor.to(cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        """The received tensor in its own dtype again."""
        return tensor if dtype is None else tensor.to(dtype)


class _Float16(Compressor):
    wire_dtype = torch.float16


class _BFloat16(Compressor):
    wire_dtype = torch.bfloat16


class Compression:
    """What `compression=` takes.

    `none`; `fp16`: 11 bits of precision, values up to 65504; `bf16`: 8 bits, and float32's range.
    """

    none = Compressor
    fp16 = _Float16
    bf16 = _BFloat16
