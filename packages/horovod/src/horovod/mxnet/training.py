"""What averages gradients, with Horovod's signatures."""

from __future__ import annotations

from typing import Any

import ringcore_mxnet as ring
from ringcore import ProcessSet, global_process_set

from horovod.mxnet.compression import Compression

__all__ = ["DistributedOptimizer", "DistributedTrainer"]


class DistributedOptimizer(ring.DistributedOptimizer):
    """`ringcore_mxnet.DistributedOptimizer`; `num_groups` is not needed: the engine packs small gradients."""

    def __init__(
        self, optimizer: Any, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:  # fmt: skip
        del num_groups
        super().__init__(
            optimizer, gradient_predivide_factor=gradient_predivide_factor, process_set=process_set,
            check_weights=False,  # as with Horovod, whose scripts may begin apart
        )  # fmt: skip


class DistributedTrainer(ring.DistributedTrainer):
    """`ringcore_mxnet.DistributedTrainer`; takes the optimizer out of a DistributedOptimizer."""

    def __init__(
        self, params: Any, optimizer: Any, optimizer_params: Any = None, compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0, prefix: str | None = None, num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:  # fmt: skip
        if isinstance(optimizer, ring.DistributedOptimizer):
            optimizer = optimizer.unwrapped
        super().__init__(
            params, optimizer, optimizer_params, compression=compression, prefix=prefix, groups=num_groups or None,
            gradient_predivide_factor=gradient_predivide_factor, process_set=process_set, check_weights=False,
        )  # fmt: skip
