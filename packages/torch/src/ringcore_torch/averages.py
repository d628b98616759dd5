"""Averages, or sums, that are on their way while the program goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ringcore_torch._operations import start_allreduce
from ringcore_torch.compression import Compressor


class Averages:
    """Of tensors, over all ranks; perhaps still under way.

    Args:
        tensors: Nobody changes them until `wait` has returned.
        compression: What is sent of them.
        options: Of the allreduce; with `in_place` the results take the place of what is sent.

    Attributes:
        wait: Returns them, as often as it is called.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], compression: type[Compressor], **options: Any) -> None:
        pairs = [compression.compress(tensor) for tensor in tensors]
        sent = [one for one, _ in pairs]
        handle = start_allreduce(sent, compression.code_for(*sent), **options)

        def arrived() -> list[torch.Tensor]:
            averages = handle.synchronize()
            return [compression.decompress(one, dtype) for one, (_, dtype) in zip(averages, pairs, strict=True)]

        self.wait: Callable[[], list[torch.Tensor]] = functools.cache(arrived)
