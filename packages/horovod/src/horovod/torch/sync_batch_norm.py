"""Batch normalisation over all ranks, under Horovod's name."""

from ringcore_torch import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
