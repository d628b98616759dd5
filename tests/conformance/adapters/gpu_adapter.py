"""The core on arrays of GPUs: through the test double of CUDA and NCCL."""

from __future__ import annotations

import ringcore as collectives
from support import gpu

dtypes = (
    "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool",
)  # fmt: skip

tensor = gpu.GpuArray
array = gpu.to_host
