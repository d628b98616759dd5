"""Averages of numpy's arrays that are on their way while the program goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ringcore.adapter import bfloat16, buffer, collectives
from ringcore.adapter.compression import Compressor
from ringcore.job.process_sets import ProcessSet


def start_averages(
    arrays: Sequence[Any], name: str, compression: type[Compressor[Any]], process_set: ProcessSet
) -> Callable[[], list[Any]]:
    """Begin to average arrays over all ranks.

    Args:
        arrays: Of numpy, contiguous; nobody changes them until the averages are here.
        name: Identifies the operation on all ranks.
        compression: What is sent of them: a member of `ringcore.Compression`.
        process_set: The ranks that take part.

    Returns:
        Waits for the averages, in memory of their own, and returns them; as often as it is called.
    """
    import numpy as np

    pairs = [compression.compress(array) for array in arrays]
    landed = [np.empty_like(sent) for sent, _ in pairs]
    is_bits = [dtype is not None and compression.wire_dtype == "bfloat16" for _, dtype in pairs]
    sources, targets = (
        tuple(
            bfloat16.buffer_of(one) if bits else buffer.as_buffer(one) for one, bits in zip(each, is_bits, strict=True)
        )
        for each in ([sent for sent, _ in pairs], landed)
    )
    code = compression.code_for(*arrays)
    handle = collectives.allreduce(sources, targets, name, process_set=process_set, compression=code)

    def arrived() -> list[Any]:
        handle.wait()
        return [compression.decompress(one, dtype) for one, (_, dtype) in zip(landed, pairs, strict=True)]

    return functools.cache(arrived)
