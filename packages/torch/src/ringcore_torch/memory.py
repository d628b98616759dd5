"""Memory that gradients and parameters lie in."""

from __future__ import annotations

from typing import Any

import torch
from ringcore import adapter


def registered_zeros(count: int, dtype: Any, device: torch.device) -> torch.Tensor:
    """A row of zeros, in registered memory where there is shared memory.

    Args:
        count: Of its elements.
        dtype: A dtype of torch.
        device: The CPU, or another one, whose memory is not registered.
    """
    if device.type != "cpu":
        return torch.zeros(count, dtype=dtype, device=device)
    registered = adapter.allocate(count * dtype.itemsize)
    if registered is None:
        return torch.zeros(count, dtype=dtype, device="cpu")
    return torch.frombuffer(registered.view(), dtype=dtype)[:count].zero_()
