"""PyTorch with tensors on a GPU: ringcore_torch."""

from __future__ import annotations

import os

import numpy as np
import ringcore_torch as collectives
import torch

from conformance.adapters import torch_adapter

dtypes = torch_adapter.dtypes

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch_adapter.tensor(array).cuda()


def array(tensor: torch.Tensor) -> np.ndarray:
    return torch_adapter.array(tensor.cpu())
