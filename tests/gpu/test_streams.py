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


def wait_in_two_streams(described: bool) -> dict:
    import weakref

    from ringcore import adapter
    from ringcore.adapter import Buffer
    from support.exchange import ExchangedArray
    from support.gpu import driver, new_stream, start_to_host, stream
    from support.rank import await_mark, mark

    def synchronize(where: object) -> None:
        assert driver().cuStreamSynchronize(where) == 0

    ringcore.init()
    rank = ringcore.rank()
    late, *later = new_stream(), new_stream(), new_stream()
    if rank == 1:
        driver().gpu_double_hold(late)  # what this rank's GPU has for the others is not ready
    ExchangedArray.current = late.value if rank == 1 else stream().value
    tensor = ExchangedArray(np.full(10, rank + 1.0), rank)
    synchronize(stream())
    given = tensor
    if described:  # as an adapter does with what the engine cannot look at itself
        address, _ = tensor.array.__cuda_array_interface__["data"]
        given = Buffer(address, (10,), adapter.DTYPE_CODES["float32"], tensor, rank, ExchangedArray.current)
    handle = adapter.allreduce((given,), (given,), "twice", op=ringcore.Sum)
    found = []
    for where in later:
        ExchangedArray.current = where.value
        handle.wait()
        found.append(start_to_host(tensor.array, where))
    synchronize(stream())  # has not waited, and goes on
    early = handle.landed()
    kept, array = weakref.ref(tensor), tensor.array
    del handle, given, tensor
    adapter.barrier("launched")
    is_there = kept() is not None  # the GPU still has to write there
    mark("looked")
    if rank == 1:
        await_mark("looked", 0)
        driver().gpu_double_let_go(late)
    for where in later:
        synchronize(where)
    synchronize(late)
    adapter.barrier("ended")  # frees what the GPU is done with
    del array
    return {
        "values": [values.tolist() for values in found], "early": early, "kept": is_there, "freed": kept() is None,
    }  # fmt: skip


only_the_double = pytest.mark.skipif(
    "RINGCORE_TEST_GPUS" in os.environ, reason="only the double can hold a stream back"
)


@only_the_double
def test_the_stream_that_waits_is_the_one_that_uses_the_result(tmp_path: Path) -> None:
    assert ranks.run(change_streams, 2, tmp_path, env=double_environ()) == [[3.0] * 10] * 2


@only_the_double
@pytest.mark.parametrize("described", [False, True])
def test_each_stream_that_waits_is_held_back_and_no_other(tmp_path: Path, described: bool) -> None:
    for outcome in ranks.run(wait_in_two_streams, 2, tmp_path, described, env=double_environ()):
        assert outcome["values"] == [[3.0] * 10] * 2
        assert not outcome["early"], "it had landed before the other rank's stream went on"
        assert outcome["kept"] and outcome["freed"]
