"""PyTorch: ringcore_torch."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import ringcore_torch as collectives
import torch

# PyTorch has no arithmetic for uint16, but its tensors can be moved and reduced.
dtypes = (
    "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool",
)  # fmt: skip


def tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.copy().view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def array(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
