"""What the engine declares of NVIDIA's libraries by hand, and its kernels, against NVIDIA's headers and compiler."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
needs_cuda = pytest.mark.skipif(NVCC is None, reason="CUDA's compiler is not installed")


def _run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_cuda
def test_declarations_are_those_of_the_headers(tmp_path: Path) -> None:
    # NCCL's header comes with its wheel; without it CUDA's are compared alone.
    folders = [Path(entry, "nvidia/nccl/include") for entry in sys.path]
    includes = [f"-I{folder}" for folder in [NATIVE, *folders] if folder.exists()]
    source = NATIVE / "tests/headers/gpu_declarations.cpp"
    _run(NVCC, "-std=c++20", "-c", "-o", tmp_path / "declarations.o", *includes, source)  # it knows where CUDA's are


@needs_cuda
@pytest.mark.parametrize("source", ["kernels.cu", "reduce.cu"])
@pytest.mark.parametrize(
    "ends", [pytest.param(False, marks=pytest.mark.long, id="every"), pytest.param(True, id="ends")]
)
def test_the_kernels_compile_for_every_gpu_from_volta_to_blackwell(tmp_path: Path, source: str, ends: bool) -> None:
    known = [int(number) for number in re.findall(r"sm_(\d+)$", _run(NVCC, "--list-gpu-code"), re.MULTILINE)]
    wanted = [number for number in (70, 75, 80, 86, 90, 100, 120) if number in known]
    assert len(wanted) >= 5
    if ends:  # the oldest and the newest, in each run
        wanted = [wanted[0], wanted[-1]]
    targets = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in wanted]
    _run(NVCC, "-std=c++17", "--fatbin", *targets, "-o", tmp_path / "kernels.fatbin", NATIVE / "device" / source)
