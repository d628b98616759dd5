"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ringcore import Sum
from ringcore.adapter import ProcessSet, Statistics, batch_statistics, global_process_set, name_or_next
from torch.nn.modules.batchnorm import _BatchNorm

from ringcore_torch._differentiable import allreduce


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm*d` whose mean and variance in training are those of all ranks' batches together.

    Ranks may have batches of different size, also empty ones.

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
        found = batch_statistics(
            values, values.new_full((1,), input.numel() / max(input.shape[1], 1)), sum_of=lambda x: x.sum(dims),
            over_ranks=self._over_ranks, spread=lambda x: x.view(shape), constant=torch.Tensor.detach,
        )  # fmt: skip
        self._track(found)
        result: torch.Tensor = found.centred * torch.rsqrt(found.variance + self.eps).view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)

    def _over_ranks(self, parts: Sequence[torch.Tensor], what: str) -> Sequence[torch.Tensor]:
        total = allreduce(torch.cat(list(parts)), op=Sum, name=f"{self._name}.{what}", process_set=self._process_set)
        sums: tuple[torch.Tensor, ...] = total.split([len(part) for part in parts])  # type: ignore[no-untyped-call]
        return sums

    def _track(self, found: Statistics) -> None:
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
            unbiased = found.variance * (found.count / (found.count - 1))
            for running, now in ((self.running_mean, found.mean), (self.running_var, unbiased)):
                running.lerp_(now.to(running.dtype), weight)
