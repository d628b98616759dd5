"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from ringcore import Sum
from ringcore.adapter import ProcessSet, global_process_set, name_or_next
from torch.nn.modules.batchnorm import _BatchNorm

from ringcore_torch._differentiable import allreduce


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm*d` whose mean and variance in training are those of all ranks' batches together.

    Ranks may have batches of different size, also empty ones. The mean is found first and the variance around it: no
    digits are lost to cancellation.

    Args:
        num_features: Channels: the second dimension of the input.
        process_set: The ranks whose batches belong together.
        options: `eps`, `momentum`, `affine`, `track_running_stats` of `torch.nn.BatchNorm2d`.
    """

    def __init__(self, num_features: int, *args: Any, process_set: ProcessSet = global_process_set, **options: Any):
        super().__init__(num_features, *args, **options)
        self._process_set = process_set
        self._name = name_or_next(None, "SyncBatchNorm", process_set)

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - torch's name for it
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm takes inputs of at least 2 dimensions, not {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name for it
        """Normalise; in training with the statistics of all ranks."""
        self._check_input_dim(input)
        statistics_of_batch = self.training or self.running_mean is None
        if not statistics_of_batch or self._process_set.size() == 1:
            return super().forward(input)
        dims = [d for d in range(input.dim()) if d != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        # Sums over a batch have more digits than a 16-bit float, and leave the range of float16.
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        count = values.new_full((1,), input.numel() / max(input.shape[1], 1))
        sums = self._sum(torch.cat([values.sum(dims), count]), "mean")
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = values - mean.view(shape)
        variance = self._sum((centred * centred).sum(dims), "variance") / total
        self._track(mean.detach(), variance.detach(), total)
        result = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)

    def _sum(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        return allreduce(tensor, op=Sum, name=f"{self._name}.{what}", process_set=self._process_set)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, total: torch.Tensor) -> None:
        if (
            not self.training
            or self.running_mean is None
            or self.running_var is None
            or self.num_batches_tracked is None
        ):
            return
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            weight = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
            for running, now in ((self.running_mean, mean), (self.running_var, variance * (total / (total - 1)))):
                running.lerp_(now.to(running.dtype), weight)
