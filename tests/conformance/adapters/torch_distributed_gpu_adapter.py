"""torch.distributed with the backend "ring" and tensors on a GPU."""

from __future__ import annotations

from conformance.adapters.torch_distributed_adapter import collectives
from conformance.adapters.torch_gpu_adapter import array, dtypes, tensor

__all__ = ["array", "collectives", "dtypes", "tensor"]
