"""An adapter whose framework is not installed says what to install."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parent.parent / "packages"
# What a user writes -> what is not installed, and the remedy.
MISSING = {
    "import ringcore_torch": ("torch", "torch"),
    "import ringcore_tensorflow": ("tensorflow", "'ringcore-tensorflow[tensorflow]' (or [cpu])"),
    "import ringcore_keras": ("keras", "keras"),
    "import ringcore_jax": ("jax", "jax"),
    "import ringcore_mxnet": ("mxnet", "'ringcore-mxnet[mxnet]'"),
    "import ringcore_lightning; ringcore_lightning.RingStrategy": ("lightning", "'ringcore-lightning[lightning]'"),
    "import ringcore_dask": ("distributed", "distributed"),
    "import ringcore_spark; ringcore_spark.run(print)": ("pyspark", "'ringcore-spark[pyspark]'"),
    "import horovod.torch": ("ringcore_torch", "'ringcore-horovod[torch]'"),
    "import horovod.tensorflow": ("ringcore_tensorflow", "'ringcore-horovod[tensorflow]'"),
    "import horovod.keras": ("ringcore_keras", "'ringcore-horovod[keras]'"),
    "import horovod.tensorflow.keras": ("ringcore_tensorflow", "'ringcore-horovod[tensorflow]'"),
    "import horovod.mxnet": ("ringcore_mxnet", "'ringcore-horovod[mxnet]'"),
    "import horovod.ray": ("ringcore_ray", "'ringcore-horovod[ray]'"),
    "import horovod.spark": ("ringcore_spark", "'ringcore-horovod[spark]'"),
}
# Keras is there, and what it runs on is not.
WITHOUT_BACKEND = {"import ringcore_keras": ("tensorflow", "'ringcore-keras[tensorflow]'")}
WITH_ANOTHER = "'ringcore-keras[tensorflow]'; or, as torch is installed: set KERAS_BACKEND=torch"
PROGRAM = """
import sys
from importlib.machinery import PathFinder
absent = sys.argv[1].split()
class Installed:
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Installed()
for statement in sys.argv[2:]:
    try:
        exec(statement)
        print("it works")
    except ImportError as error:
        print(type(error).__name__, error)
"""


def told(absent: set[str], statements: dict[str, tuple[str, str]]) -> list[str]:
    """What each statement raises in one process where none of these modules is installed."""
    sources = [str(path) for path in PACKAGES.glob("*/src") if path.parent.name != "core"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sources), "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, " ".join(absent), *statements],
        capture_output=True, text=True, timeout=300, check=False, env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check(lines: list[str], statements: dict[str, tuple[str, str]]) -> None:
    assert len(lines) == len(statements)
    for line, (statement, (absent, remedy)) in zip(lines, statements.items(), strict=True):
        assert line.startswith("ImportError "), f"{statement}: {line}"
        assert absent.lower() in line.lower(), f"{statement}: {line}"
        assert line.endswith(f"Remedy: pip install {remedy}"), f"{statement}: {line}"


def test_each_adapter_says_what_to_install() -> None:
    frameworks = {"torch", "tensorflow", "keras", "jax", "mxnet", "lightning", "pytorch_lightning", "distributed"}
    adapters = {statement: told for statement, told in MISSING.items() if "horovod" not in statement}
    check(told(frameworks | {"pyspark"}, adapters), adapters)


def test_horovods_modules_say_which_extra_they_need() -> None:
    frameworks = ("torch", "tensorflow", "keras", "mxnet", "ray", "spark")
    aliases = {statement: told for statement, told in MISSING.items() if "horovod" in statement}
    check(told({f"ringcore_{framework}" for framework in frameworks}, aliases), aliases)


def test_keras_without_its_backend_says_which_extra_brings_one() -> None:
    check(told({"tensorflow", "jax", "torch"}, WITHOUT_BACKEND), WITHOUT_BACKEND)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_keras_without_its_backend_names_one_that_is_there() -> None:
    statements = {"import ringcore_keras": ("tensorflow", WITH_ANOTHER)}
    check(told({"tensorflow", "jax"}, statements), statements)
    adapter = {
        "import ringcore_keras": ("tensorflow", WITH_ANOTHER.replace(": set", ": pip install ringcore-torch, and set"))
    }
    check(told({"tensorflow", "jax", "ringcore_torch"}, adapter), adapter)
