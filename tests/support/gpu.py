"""Arrays on GPUs without a framework, by the functions of CUDA's driver: the real one, or the test double of it."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

_DOUBLES = "build/native/*/libringcore_gpu_double.so"


def double_environ(**settings: str) -> dict[str, str]:
    """What makes ringcore take the test double for CUDA, NCCL and NVRTC; session `native` compiles it.

    Session `gpu` runs the same tests with the real ones (RINGCORE_TEST_GPUS: how many there are): ranks share GPUs then
    where NCCL lets them, which must be of version 2.30.

    Args:
        **settings: Variables for the ranks. RINGCORE_TEST_GPUS: how many GPUs they use, one after the other;
            NCCL_MULTI_RANK_GPU_ENABLE="0": they meet in the memory of those that they share, without NCCL.
    """
    if count := os.environ.get("RINGCORE_TEST_GPUS"):
        real = {name: value for name, value in settings.items() if not name.startswith("GPU_DOUBLE")}
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "RINGCORE_TEST_GPUS": count} | real
    root = Path(__file__).parents[2]
    given = os.environ.get("RINGCORE_GPU_DOUBLE")
    found = [given] if given else [str(path) for path in root.glob(_DOUBLES) if path.parent.name in ("release", "dev")]
    assert found, f"there is no {root / _DOUBLES}; run nox -s native first"
    library = max(found, key=lambda path: Path(path).stat().st_mtime)
    return {f"RINGCORE_{name}_LIBRARY": library for name in ("CUDA", "NCCL", "NVRTC")} | settings


def sharing_environ(gpus: int = 1, **settings: str) -> dict[str, str]:
    """The same for ranks that share so many GPUs, and may not use NCCL on one; skips the test where there are fewer."""
    import pytest  # the ranks use this file too, and have no need of it

    if gpus > int(os.environ.get("RINGCORE_TEST_GPUS", "8")):
        pytest.skip(f"there are no {gpus} GPUs here")
    return double_environ(RINGCORE_TEST_GPUS=str(gpus), NCCL_MULTI_RANK_GPU_ENABLE="0", **settings)


@functools.cache
def driver() -> ctypes.CDLL:
    """CUDA's driver, with the primary context of this rank's GPU current in this thread."""
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    os.environ.setdefault("GPU_DOUBLE_DEVICE", str(rank % int(os.environ.get("RINGCORE_TEST_GPUS", "8"))))
    library = ctypes.CDLL(os.environ.get("RINGCORE_CUDA_LIBRARY", "libcuda.so.1"))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for result in (
        library.cuInit(0),
        library.cuDeviceGet(ctypes.byref(device), int(os.environ["GPU_DOUBLE_DEVICE"])),
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        library.cuCtxPushCurrent_v2(context),
    ):
        assert result == 0, f"CUDA error {result}"
    return library


def new_stream() -> ctypes.c_void_p:
    """A stream of this rank's GPU, independent of CUDA's default ones."""
    made = ctypes.c_void_p()
    assert driver().cuStreamCreateWithPriority(ctypes.byref(made), 1, 0) == 0
    return made


@functools.cache
def stream() -> ctypes.c_void_p:
    """The stream in which this process makes its arrays and uses them."""
    return new_stream()


class GpuArray:
    """An array on this rank's GPU. Its values are on the way when it has been made."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = np.ascontiguousarray(values).reshape(values.shape)  # stays: it is copied from
        self._address = ctypes.c_uint64(0)
        if values.nbytes > 0:
            assert driver().cuMemAlloc_v2(ctypes.byref(self._address), ctypes.c_size_t(values.nbytes)) == 0
            source = ctypes.c_void_p(self.values.ctypes.data)
            result = driver().cuMemcpyHtoDAsync_v2(self._address, source, ctypes.c_size_t(values.nbytes), stream())
            assert result == 0

    def __del__(self) -> None:
        if self._address.value:
            driver().cuStreamSynchronize(stream())
            driver().cuMemFree_v2(self._address)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind = "<V2" if self.values.dtype == ml_dtypes.bfloat16 else self.values.dtype.str
        return {
            "shape": self.values.shape, "typestr": kind, "data": (self._address.value, False), "strides": None,
            "version": 3, "stream": stream().value,
        }  # fmt: skip


def to_host(array: Any) -> np.ndarray:
    """The values of anything that speaks the CUDA array interface, in the stream of this process."""
    values = start_to_host(array, stream())
    assert driver().cuStreamSynchronize(stream()) == 0
    return values


def start_to_host(array: Any, where: ctypes.c_void_p) -> np.ndarray:
    """What holds the values when the stream has come so far."""
    shown = array.__cuda_array_interface__
    kind = ml_dtypes.bfloat16 if shown["typestr"] == "<V2" else shown["typestr"]
    values = np.empty(shown["shape"], dtype=kind)
    if values.nbytes > 0:
        target, source = ctypes.c_void_p(values.ctypes.data), ctypes.c_uint64(shown["data"][0])
        assert driver().cuMemcpyDtoHAsync_v2(target, source, ctypes.c_size_t(values.nbytes), where) == 0
    return values
