"""Memory that gradients and parameters lie in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from ringcore import adapter


def keep_freed_memory(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Let the C allocator keep what a backward pass of these parameters frees, for the next one."""
    adapter.keep_freed_memory(
        sum(parameter.numel() * parameter.element_size() for _, parameter in named if parameter.device.type == "cpu")
    )


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
