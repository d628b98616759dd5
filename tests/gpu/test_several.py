"""Ranks that have tensors on several GPUs each."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.gpu import double_environ

# The arrays of tests all lie on one GPU: only the double takes them for those of another one.
pytestmark = pytest.mark.skipif("RINGCORE_TEST_GPUS" in os.environ, reason="the double has as many GPUs as are named")


def train_on_two() -> dict:
    from ringcore import adapter
    from support.exchange import ExchangedArray
    from support.gpu import stream, to_host

    ringcore.init()
    rank = ringcore.rank()
    ExchangedArray.current = stream().value
    parameters = [ExchangedArray(np.full(5, rank + 10.0 * layer), 2 * rank + layer) for layer in (0, 1)]
    for layer, parameter in enumerate(parameters):
        adapter.broadcast(parameter, parameter, 1, f"parameter {layer}").synchronize()
    gradients = [ExchangedArray(np.full(3 + layer, rank + 1.0 + layer), 2 * rank + layer) for layer in (0, 1)]
    adapter.allreduce(tuple(gradients), tuple(gradients), "gradients", op=ringcore.Sum).synchronize()
    wrong = ExchangedArray(np.zeros(2), 2 * rank + (1 if rank == 0 else 0))
    try:
        adapter.allreduce((wrong,), (wrong,), "moved", op=ringcore.Sum).synchronize()
        error = ""
    except ringcore.MismatchError as caught:
        error = str(caught)
    adapter.allreduce(tuple(gradients), tuple(gradients), "again", op=ringcore.Sum).synchronize()
    return {
        "parameters": [to_host(each.array).tolist() for each in parameters],
        "gradients": [to_host(each.array).tolist() for each in gradients],
        "error": error,
    }


def test_a_model_is_divided_among_the_gpus_of_each_rank(tmp_path: Path) -> None:
    for outcome in ranks.run(train_on_two, 2, tmp_path, env=double_environ()):
        assert outcome["parameters"] == [[1.0] * 5, [11.0] * 5]
        assert outcome["gradients"] == [[6.0] * 3, [10.0] * 4]
        for part in ("'moved'", "rank 0", "rank 1", "on GPU 2 of its own", "the same order"):
            assert part in outcome["error"]
