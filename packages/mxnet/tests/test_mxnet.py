"""The MXNet adapter on several ranks, each a real process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
WORKER = HERE / "worker.py"
# Eight steps of float32 sums in another order; gradients and weights are about 1.
ROUNDING = 1e-6
# Gradients of about 1 in 11 bits, eight steps with a learning rate of 0.1 and momentum.
ROUNDING_OF_16_BITS = 8 * 2**-11


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def run(folder: Path, cases: list[str], ranks: int, **variables: str) -> dict[str, list[dict[str, Any]]]:
    """Run cases of the worker, one after the other; returns what each rank found, by case."""
    command = [sys.executable, "-m", "ringcore", "run", "-np", str(ranks), sys.executable, str(WORKER), str(folder)]
    done = subprocess.run(
        [*command, *cases], capture_output=True, text=True, timeout=300, check=False,
        env={**environment(), "RINGCORE_TIMEOUT_S": "60", **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return {case: [json.loads((folder / f"{case}.{rank}.json").read_text()) for rank in range(ranks)] for case in cases}


CASES = [
    "layouts", "views", "programs", "training", "modules", "stores", "stored_weights", "rows", "batch_norm", "start",
    "mistakes", "the_rest",
]  # fmt: skip


# One start of the ranks serves all cases.
@pytest.fixture(scope="module", params=[(2, "shm"), (3, "tcp")], ids=["2-shm", "3-tcp"])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    ranks, transport = request.param
    return run(tmp_path_factory.mktemp("results"), CASES, ranks, RINGCORE_TRANSPORT=transport)


def test_arrays_in_layouts_of_onednn(results: dict[str, Any]) -> None:
    for found in results["layouts"]:
        assert found.pop("foreign")  # else this tests nothing
        assert set(found.values()) == {0.0}, found


def test_views_and_arrays_that_operators_still_write(results: dict[str, Any]) -> None:
    for found in results["views"]:
        assert set(found.values()) == {0.0}, found


def test_a_thousand_programs_without_waits_do_what_they_do_with_waits(results: dict[str, Any]) -> None:
    for found in results["programs"]:
        assert found == {"wrong": []}


@pytest.mark.parametrize("case", ["training", "modules"])
def test_ranks_train_like_one_with_all_their_batches(results: dict[str, Any], case: str) -> None:
    for found in results[case]:
        for name, (difference, same) in found.items():
            assert difference < (ROUNDING_OF_16_BITS if "fp16" in name else ROUNDING), name
            assert same, f"{name}: the ranks' weights differ"


def test_what_mxnet_calls_of_a_store(results: dict[str, Any]) -> None:
    called, silent = {"broadcast": 2, "pushpull": 6}, {"broadcast": 0, "pushpull": 0}
    for found in results["stores"]:
        assert found["calls"] == {"dist_ring": called, "ring": silent, "instance": called}
        assert set(found["results"]) == {0.0}
        assert found["type"] == "dist_ring_sync"
        assert found["workers"] == len(results["stores"])


def test_a_store_with_an_optimizer_holds_the_weights(results: dict[str, Any]) -> None:
    for found in results["stored_weights"]:
        assert len(found) == 4
        assert all(found.values()), found


def test_row_sparse_gradients(results: dict[str, Any]) -> None:
    for found in results["rows"]:
        assert found["sum"] == found["empty"] == 0.0
        assert found["stype"] == "row_sparse"
        assert found["embedding"] < ROUNDING
        assert found["same"]


def test_batch_normalisation_over_all_ranks(results: dict[str, Any]) -> None:
    for found in results["batch_norm"]:
        assert max(found.values()) < ROUNDING, found


def test_all_ranks_start_alike(results: dict[str, Any]) -> None:
    for found in results["start"]:
        assert all(found.values()), found


def test_mistakes_are_explained(results: dict[str, Any]) -> None:
    for found in results["mistakes"]:
        for name in ("shapes", "shapes, waited for"):
            assert found[name].startswith("MismatchError: 'shapes' was submitted differently: rank 0:")
            assert "Remedy" in found[name]
        assert found["afterwards"] == ""
        assert found["other tails"].startswith("MismatchError: 'tails'")
        assert "convert the tensor to a float dtype" in found["integers"]
        assert "use mx.nd.array(x)" in found["no array"]
        assert "tostype('default')" in found["csr"]
        assert "pass a root_rank of the process set" in found["root"]
        assert "give one number of rows for each" in found["splits"]
        assert "the splits of rank 0 do not fit" in found["splits of one"]
        assert "must divide evenly" in found["uneven"]
        assert "wrap it once" in found["wrapped twice"]
        assert "mx.optimizer.create" in found["no optimizer"]
        assert "unwrapped" in found["trainer"]
        assert "net.collect_params()" in found["parameters"]
        assert "{'type': 'fp16'}" in found["compression"]
        for name in ("sparse weights", "sparse weights stored"):
            assert "DistributedTrainer" in found[name]
        assert "has a value already" in found["stored twice"]
        assert "call init('a', value)" in found["not stored"]
        assert not any("not typed" in text for text in found.values())


def test_joins_objects_priorities_forks_and_copies(results: dict[str, Any]) -> None:
    for found in results["the_rest"]:
        assert all(found.values()), found


def test_mxnets_engine_for_debugging(tmp_path: Path) -> None:
    for found in run(tmp_path, ["views", "mistakes"], 2, MXNET_ENGINE_TYPE="NaiveEngine").values():
        assert len(found) == 2
        assert found[0].get("afterwards", "") == ""


def test_a_killed_rank_is_told_to_whoever_waits_and_all_starts_anew(tmp_path: Path) -> None:
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RINGCORE_JOB_ID": uuid.uuid4().hex}
    job["XDG_RUNTIME_DIR"] = str(tmp_path)
    # Without ringrun, which would end the survivor as well.
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(tmp_path), "lost"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**environment(), **job, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert processes[0].returncode == 0, said[0]
    found = json.loads((tmp_path / "lost.0.json").read_text())
    for name in ("asnumpy", "waitall", "step"):
        assert found[name].startswith("PeerLostError: "), name
        assert "rank 1" in found[name]
    assert found["again"] == [1.0, 1.0, 1.0]


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
