"""Elastic training of PyTorch with a fixed number of ranks, see `horovod.common.elastic`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.common.elastic import run_fn
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function: it begins with the state of rank 0.

    Args:
        func: Takes a state, and whatever else.
    """
    return run_fn(func)
