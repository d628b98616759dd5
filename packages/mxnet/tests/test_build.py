"""What the MXNet adapter is built against, and what it cannot work with."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_the_shim_declares_what_mxnet_declares() -> None:
    spec = importlib.util.find_spec("mxnet")
    assert spec is not None
    assert spec.origin is not None
    headers = Path(spec.origin).parent / "include"
    # As the wheel was built; its headers are those of an older C++.
    defined = ["MXNET_USE_MKLDNN=1", *(f"MSHADOW_USE_{name}=0" for name in ("CUDA", "MKL", "CBLAS", "F16C"))]
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w", *(f"-D{name}" for name in defined)]
    includes = [f"-I{path}" for path in (headers, headers / "mkldnn", HERE.parent / "src/native")]
    done = subprocess.run(
        [*command, *includes, str(HERE / "declarations.cpp")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("numpy", "python", "remedy"),
    [("1.26.4", (3, 12), "pip install setuptools"), ("2.1.0", (3, 11), "'ringcore-mxnet[mxnet]'")],
)
def test_what_mxnet_cannot_work_with_is_told_at_import(numpy: str, python: tuple[int, int], remedy: str) -> None:
    code = (
        "import sys, numpy, importlib.util\n"
        f"numpy.__version__ = {numpy!r}\n"
        f"sys.version_info = {python!r}\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'setuptools' else find(name, *rest)\n"
        "import ringcore_mxnet\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert remedy in done.stderr.splitlines()[-1]
