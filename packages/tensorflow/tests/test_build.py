"""What the TensorFlow adapter is built against."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def test_the_shim_declares_what_tensorflow_declares() -> None:
    spec = importlib.util.find_spec("tensorflow")
    assert spec is not None
    assert spec.origin is not None
    headers = Path(spec.origin).parent / "include"
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{headers}", f"-I{HERE.parent / 'src/native'}"]
    done = subprocess.run(
        [*command, str(HERE / "declarations.cpp")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
