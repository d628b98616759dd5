"""The examples run, and two ranks end where one ends that sees the same batches."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# Images of the test set that may be read differently. In float64 none are. Mixed precision rounds weights that differ
# in their last bits to eight bits: some of those fall to the other side.
DIFFERENT = {
    "torch/loop": 0, "torch/elastic": 0,
    "torch/amp": 4, "torch/join": 0, "torch/embeddings": 0, "lightning/digits": 0, "jax/digits": 0,
    "tensorflow/digits": 0, "keras/digits": 0, "mxnet/gluon": 0, "mxnet/module": 0,
}  # fmt: skip
# Keras runs on the framework whose environment this is; the other examples run in those of theirs.
BACKEND = next((name for name in ("tensorflow", "jax", "torch") if importlib.util.find_spec(name)), "")
NEEDED = {"keras": BACKEND, "lightning": "torch"}


def is_here(example: str) -> bool:
    folder = example.split("/", maxsplit=1)[0]
    modules = (f"ringcore_{folder}", NEEDED.get(folder, folder))
    return all(module and importlib.util.find_spec(module) for module in modules)


# One stands for the others: that each adapter trains, its own tests show.
IN_EACH_RUN = "torch/loop"
HERE = [
    example if example == IN_EACH_RUN else pytest.param(example, marks=pytest.mark.long)
    for example in DIFFERENT
    if is_here(example)
]
TEST_IMAGES = 1797 - 1408


def accuracy(example: str, ranks: int) -> float:
    command = [sys.executable, "-m", "ringcore", "run", "-np", str(ranks), str(EXAMPLES / f"{example}.py")]
    if example.startswith("lightning"):
        command.append(f"--devices={ranks}")
    variables = {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": BACKEND, "JAX_ENABLE_X64": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **variables}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = re.findall(rf"accuracy (0\.\d+) on {ranks} ranks", done.stdout)
    return float(found)


@pytest.mark.parametrize("example", HERE)
def test_two_ranks_end_where_one_ends(example: str) -> None:
    one, two = accuracy(example, 1), accuracy(example, 2)
    assert one > 0.85
    # Accuracies are printed with four digits.
    assert abs(one - two) <= DIFFERENT[example] / TEST_IMAGES + 1e-4


def test_every_example_is_run() -> None:
    found = {f"{path.parent.name}/{path.stem}" for path in EXAMPLES.glob("*/*.py")}
    assert found == {
        *DIFFERENT,
        "torch/digits",
        "plans/two_level",
        "plans/packed",
        "plans/served",
    }  # the README's demo; tests/plans
