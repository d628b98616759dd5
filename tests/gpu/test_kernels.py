"""The arithmetic of the kernels, compiled for the host: the test double has functions of its own in their place."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

NATIVE = Path(__file__).parents[2] / "native"
DTYPES = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
# As base/types.hpp numbers them.
OPS = {"sum": (0, np.add), "min": (2, np.minimum), "max": (3, np.maximum), "product": (4, np.multiply)}

# What CUDA's compiler knows by itself.
PRELUDE = """
#define __device__
#define __global__
#define __grid_constant__
struct Dim { unsigned x, y, z; };
Dim gridDim{3, 1, 1}, blockDim{4, 1, 1}, blockIdx{}, threadIdx{};
static float __uint_as_float(unsigned bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }
static unsigned __float_as_uint(float value) { unsigned bits; __builtin_memcpy(&bits, &value, 4); return bits; }
static float from_half(unsigned short bits) { _Float16 half; __builtin_memcpy(&half, &bits, 2); return half; }
static unsigned short to_half(_Float16 half) { unsigned short bits; __builtin_memcpy(&bits, &half, 2); return bits; }
"""
RUN = """
extern "C" void run(void (*kernel)(const Sources), const Sources* sources) {
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) kernel(*sources);
  }
}
"""


class Sources(ctypes.Structure):
    """As device/reduce.hpp."""

    _fields_ = (
        ("addresses", ctypes.c_uint64 * 64), ("to", ctypes.c_uint64), ("vectors", ctypes.c_uint64),
        ("factor", ctypes.c_double), ("count", ctypes.c_int), ("op", ctypes.c_int),
    )  # fmt: skip


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    assert compiler, "g++ is not installed"
    common = (NATIVE / "device/kernels.cu").read_text()
    for assembly, same in (
        ('asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));', "wide = from_half(value);"),
        ('asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(value));', "narrow = to_half(_Float16(value));"),
    ):
        assert assembly in common
        common = common.replace(assembly, same)
    reduce = (NATIVE / "device/reduce.cu").read_text().replace('#include "kernels.cu"', "")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.cpp").write_text(PRELUDE + common + reduce + RUN)
    command = [compiler, "-std=c++20", "-O1", "-w", "-ffp-contract=off", "-shared", "-fPIC"]
    done = subprocess.run(
        [*command, "-o", folder / "kernels.so", folder / "kernels.cpp"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(folder / "kernels.so"))


def values(source: int, count: int, dtype: np.dtype) -> np.ndarray:
    generator = np.random.default_rng(source)
    if dtype.kind in "iu":
        whole = np.iinfo(dtype)
        return generator.integers(whole.min, whole.max, count, dtype, endpoint=True)
    floats = generator.standard_normal(count).astype(dtype)
    floats[generator.integers(count)] = np.nan
    return floats


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", DTYPES)
def test_buffers_are_reduced_in_order_and_rounded_once(kernels: ctypes.CDLL, name: str, op: str) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    wide = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
    code, combine = OPS[op]
    vectors = 101  # no multiple of the threads
    for count in (1, 2, 3, 5):
        for factor in (1.0,) if dtype.kind in "iu" else (1.0, 1 / 3):
            inputs = [values(source, vectors * 16 // dtype.itemsize, dtype) for source in range(count)]
            expected = inputs[0].astype(wide)
            with np.errstate(all="ignore"):
                for other in inputs[1:]:
                    expected = combine(expected, other.astype(wide))
                if factor != 1.0:
                    expected = expected * wide.type(factor)
                expected = expected.astype(dtype)
            parameter = Sources(vectors=vectors, factor=factor, count=count, op=code, to=inputs[-1].ctypes.data)
            for place, array in enumerate(inputs):
                parameter.addresses[place] = array.ctypes.data
            kernels.run(getattr(kernels, f"ringcore_reduce_{name}"), ctypes.byref(parameter))
            same = (inputs[-1] == expected) | ((inputs[-1] != inputs[-1]) & (expected != expected))
            assert same.all(), f"{np.count_nonzero(~same)} of {same.size} wrong with {count} buffers, factor {factor}"
