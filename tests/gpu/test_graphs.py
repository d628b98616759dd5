"""Collectives that become part of CUDA graphs, between processes, of tensors that come by DLPack's C exchange."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.gpu import double_environ


def replay() -> dict:
    import ctypes

    from ringcore import adapter
    from support.exchange import ExchangedArray
    from support.gpu import driver, stream, to_host

    def capture_step() -> ctypes.c_void_p:
        executable, graph = ctypes.c_void_p(), ctypes.c_void_p()
        assert driver().cuStreamBeginCapture_v2(stream(), 0) == 0  # in the mode that any thread can break
        try:
            adapter.allreduce((tensor,), (tensor,), "step", op=ringcore.Sum).synchronize()
            adapter.allreduce((mean,), (mean,), "mean", blocking=True)
        finally:
            result = driver().cuStreamEndCapture(stream(), ctypes.byref(graph))
        assert result == 0, f"CUDA error {result}"
        flags = ctypes.c_ulonglong(0)
        assert driver().cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, flags) == 0
        assert driver().cuGraphDestroy(graph) == 0
        return executable

    def values_become(array: ExchangedArray, value: float) -> None:
        array.array.values.fill(value)
        address = ctypes.c_uint64(array.array.__cuda_array_interface__["data"][0])
        source, nbytes = ctypes.c_void_p(array.array.values.ctypes.data), ctypes.c_size_t(array.array.values.nbytes)
        assert driver().cuMemcpyHtoDAsync_v2(address, source, nbytes, stream()) == 0

    ringcore.init()
    rank = ringcore.rank()
    tensor, mean = (ExchangedArray(np.full(10, 1.0), rank) for _ in range(2))
    ExchangedArray.current = stream().value
    error = None
    try:
        capture_step()
    except ringcore.RingcoreError as refused:
        error = f"{type(refused).__name__}: {refused}"
    adapter.allreduce((tensor,), (tensor,), "step", op=ringcore.Sum).synchronize()  # connects
    step = capture_step()
    results = []
    for value in (1.0, 5.0):
        values_become(tensor, value + rank)
        values_become(mean, value * 10 + rank)
        assert driver().cuGraphLaunch(step, stream()) == 0
        results.append((float(to_host(tensor.array)[9]), float(to_host(mean.array)[9])))
    ringcore.shutdown()  # ends although the graph is still there
    assert driver().cuGraphExecDestroy(step) == 0
    return {"error": error, "results": results}


@pytest.mark.skipif("RINGCORE_TEST_GPUS" in os.environ, reason="the type of the arrays is the double's")
def test_replays_reduce_what_lies_there_then(tmp_path: Path) -> None:
    for outcome in ranks.run(replay, 2, tmp_path, env=double_environ()):
        assert outcome["error"].startswith("InvalidArgument: 'step' cannot be captured into a CUDA graph"), outcome
        assert "Remedy: run one step without capturing first." in outcome["error"]
        assert outcome["results"] == [[3.0, 10.5], [11.0, 50.5]]
