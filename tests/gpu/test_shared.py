"""Ranks that share a GPU: what goes through its memory, what takes other ways, and what the log says of it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.gpu import sharing_environ

needs_double = pytest.mark.skipif("RINGCORE_TEST_GPUS" in os.environ, reason="only the double can be told to refuse")

MEETS = "allreduce and broadcast go through the memory of that GPU (CUDA IPC"
BY_HOST = "tensors of GPUs are copied to the host and reduced there"


def reduce_large() -> dict:
    """Tensors of several times the memory that is shared, and groups of many; sums that are exact in each dtype."""
    from support.gpu import GpuArray, to_host

    ringcore.init()
    rank, size = ringcore.rank(), ringcore.size()
    wrong = []

    def check(what: str, result: GpuArray, expected: np.ndarray, *, divided: bool = False) -> None:
        got = to_host(result)
        # A third is no binary number.
        good = np.isclose(got, expected, rtol=2e-7, atol=0.0) if divided and size == 3 else got == expected
        if got.dtype != expected.dtype or not good.all():
            wrong.append(f"{what}: {np.count_nonzero(~good)} of {got.size} wrong")

    def values(count: int, dtype: str, of: int) -> np.ndarray:
        return ((np.arange(count) % 13 + 1) * 2**of).astype(dtype)

    def total(count: int, dtype: str) -> np.ndarray:
        return ((np.arange(count) % 13 + 1) * (2**size - 1)).astype(dtype)

    for count, dtype in ((3_000_001, "float32"), (2_500_001, "float16"), (1_700_003, "int64"), (9_000_001, "uint8")):
        result = ringcore.allreduce(GpuArray(values(count, dtype, rank)), op=ringcore.Sum, name=f"{dtype}")
        check(f"sum of {count} {dtype}", result, total(count, dtype))
    tensor = GpuArray(values(2_000_003, "float64", rank))
    ringcore.allreduce_(tensor, op=ringcore.Average, prescale_factor=4.0, postscale_factor=0.5, name="scaled")
    check("scaled average", tensor, total(2_000_003, "float64") * 2.0 / size, divided=True)
    for root in range(size):
        sent = GpuArray(values(3_000_001, "int32", rank))
        ringcore.broadcast_(sent, root, name=f"from {root}")
        check(f"broadcast from {root}", sent, values(3_000_001, "int32", root))
    counts = [1 + 40_009 * i for i in range(12)]
    group = [GpuArray(values(count, "float32", rank)) for count in counts]
    for count, result in zip(counts, ringcore.grouped_allreduce(group, op=ringcore.Average, name="group"), strict=True):
        check(f"average of {count} in a group", result, total(count, "float32") / np.float32(size), divided=True)
    # One after the other, so that each begins while the others may still take the result of the one before.
    handles = [
        ringcore.allreduce_async(GpuArray(values(1_100_003, "float32", rank) + i), op=ringcore.Sum, name=f"step {i}")
        for i in range(10)
    ]
    for i, handle in enumerate(handles):
        result = ringcore.synchronize(handle)
        check(f"step {i}", result, total(1_100_003, "float32") + np.float32(i * size))
    ringcore.shutdown()
    return {"wrong": wrong}


@pytest.mark.parametrize(
    ("size", "gpus"), [(2, 1), (4, 2), *(pytest.param(*case, marks=pytest.mark.long) for case in ((3, 1), (3, 2)))]
)
def test_large_tensors_go_through_the_memory_of_the_gpu(tmp_path: Path, size: int, gpus: int) -> None:
    env = sharing_environ(gpus, RINGCORE_FUSION_THRESHOLD_BYTES=str(5 << 20))
    with ranks.started(reduce_large, size, tmp_path, env=env) as job:
        for outcome in job.wait():
            assert outcome.exit_code == 0, outcome.stderr
            assert outcome.result["wrong"] == []
            assert MEETS in outcome.stderr
            assert ("and NCCL between the GPUs" in outcome.stderr) == (gpus > 1)
            assert BY_HOST not in outcome.stderr


def reduce_small(lacks: int) -> float:
    from support.gpu import GpuArray, to_host

    if int(os.environ["RANK"]) == lacks:
        os.environ["GPU_DOUBLE_IPC"] = "0"
    ringcore.init()
    result = ringcore.allreduce(GpuArray(np.full(5, 2.0 ** ringcore.rank())), op=ringcore.Sum)
    return float(to_host(result)[4])


@needs_double
@pytest.mark.parametrize("lacks", [0, 2])
def test_where_one_rank_cannot_open_the_memory_all_go_by_the_host(tmp_path: Path, lacks: int) -> None:
    with ranks.started(reduce_small, 3, tmp_path, lacks, env=sharing_environ()) as job:
        outcomes = job.wait()
    for outcome in outcomes:
        assert outcome.result == 7.0, outcome.stderr
        assert BY_HOST in outcome.stderr
        assert "member 1 and member 0 share a GPU" in outcome.stderr
        assert f"member {lacks}: cuIpcOpenMemHandle: operation not supported" in outcome.stderr
        assert MEETS not in outcome.stderr


@needs_double
def test_without_kernels_all_go_by_the_host(tmp_path: Path) -> None:
    with ranks.started(reduce_small, 2, tmp_path, -1, env=sharing_environ(GPU_DOUBLE_NVRTC="0")) as job:
        for outcome in job.wait():
            assert outcome.result == 3.0, outcome.stderr
            assert "the kernels for that could not be compiled by NVRTC" in outcome.stderr


@needs_double
@pytest.mark.parametrize(("gpus", "meet"), [(1, True), (2, False)])
def test_one_gpu_needs_no_nccl(tmp_path: Path, gpus: int, meet: bool) -> None:
    env = sharing_environ(gpus) | {"RINGCORE_NCCL_LIBRARY": "/nowhere/libnccl.so"}
    with ranks.started(reduce_small, 3, tmp_path, -1, env=env) as job:
        for outcome in job.wait():
            assert outcome.result == 7.0, outcome.stderr
            assert (MEETS in outcome.stderr) == meet
            assert (BY_HOST in outcome.stderr) != meet


@needs_double
def test_nccl_comes_first_where_it_serves_them(tmp_path: Path) -> None:
    env = sharing_environ(GPU_DOUBLE_NCCL_VERSION="23000") | {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    with ranks.started(reduce_small, 2, tmp_path, -1, env=env) as job:
        for outcome in job.wait():
            assert outcome.result == 3.0, outcome.stderr
            assert "share a GPU" not in outcome.stderr


def come_and_go(times: int) -> list:
    from support.gpu import GpuArray, to_host

    sums = []
    for _ in range(2):
        ringcore.init()
        for _ in range(times):
            pair = ringcore.add_process_set([0, 1])
            tensor = GpuArray(np.full(1000, ringcore.rank() + 1.0))
            sums.append(float(to_host(ringcore.allreduce(tensor, op=ringcore.Sum, process_set=pair))[999]))
            ringcore.remove_process_set(pair)
        ringcore.shutdown()
    return sums


@needs_double
def test_process_sets_and_jobs_use_the_same_memory_again(tmp_path: Path) -> None:
    """The double lets a process share 30 pieces of memory at most."""
    with ranks.started(come_and_go, 2, tmp_path, 25, env=sharing_environ()) as job:
        for outcome in job.wait():
            assert outcome.result == [3.0] * 50, outcome.stderr
            assert BY_HOST not in outcome.stderr
