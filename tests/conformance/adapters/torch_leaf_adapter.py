"""PyTorch: tensors that require a gradient, where their dtype can have one."""

from __future__ import annotations

import numpy as np
import ringcore_torch as collectives
import torch

from conformance.adapters import torch_adapter
from conformance.adapters.torch_adapter import dtypes

__all__ = ["array", "collectives", "dtypes", "tensor"]


def tensor(array: np.ndarray) -> torch.Tensor:
    made = torch_adapter.tensor(array)
    return made.requires_grad_(made.is_floating_point())


def array(tensor: torch.Tensor) -> np.ndarray:
    return torch_adapter.array(tensor.detach())
