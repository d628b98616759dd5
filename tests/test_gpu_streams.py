"""Who waits for whom, of tensors that come by DLPack's C exchange, as PyTorch's do."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.gpu import double_environ


def change_streams() -> list[float]:
    from ringcore import adapter
    from support.exchange import ExchangedArray
    from support.gpu import driver, new_stream, start_to_host, stream

    ringcore.init()
    later = new_stream()
    driver().gpu_double_hold(stream())
    tensor = ExchangedArray(np.full(10, ringcore.rank() + 1.0), ringcore.rank())  # is written behind that
    ExchangedArray.current = stream().value
    handle = adapter.allreduce((tensor,), (tensor,), "moves on", op=ringcore.Sum)
    ExchangedArray.current = later.value
    handle.synchronize()
    values = start_to_host(tensor.array, later)
    driver().gpu_double_let_go(stream())
    driver().cuStreamSynchronize(later)
    return values.tolist()


@pytest.mark.skipif("RINGCORE_TEST_GPUS" in os.environ, reason="only the double can hold a stream back")
def test_the_stream_that_waits_is_the_one_that_uses_the_result(tmp_path: Path) -> None:
    assert ranks.run(change_streams, 2, tmp_path, env=double_environ()) == [[3.0] * 10] * 2
