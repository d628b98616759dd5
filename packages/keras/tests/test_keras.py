"""The Keras adapter on several ranks, each a real process, on every backend that is installed."""

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

WORKER = Path(__file__).with_name("worker.py")
INSTALLED = [
    name
    for name in ("tensorflow", "jax", "torch")
    if importlib.util.find_spec(name) and importlib.util.find_spec(f"ringcore_{name}")
]
# Twenty steps of float32 sums in another order; gradients and weights are about 1.
ROUNDING = 5e-6


@pytest.fixture(params=INSTALLED)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def environment(backend: str) -> dict[str, str]:
    return {**os.environ, "KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}


def run(backend: str, folder: Path, calls: list[str], ranks: int = 2) -> dict[str, list[dict[str, Any]]]:
    """Run cases of the worker, one after the other; returns what each rank found, by case."""
    command = [sys.executable, "-m", "ringcore", "run", "-np", str(ranks), sys.executable, str(WORKER), str(folder)]
    done = subprocess.run(
        [*command, *calls], capture_output=True, text=True, timeout=300, check=False, env=environment(backend)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {call: [json.loads((folder / f"{call}.{rank}.json").read_text()) for rank in range(ranks)] for call in calls}


TRAINING = ["equality,sgd,graph", "equality,adam,eager", "equality,schedule,steps"]
CALLS = [
    *TRAINING, "accumulation", "broadcast,1", "broadcast,4", "metrics", "own_step", "beside_a_gpu", "rates", "ending",
    "saving", "local", "batch_norm", "embedding", "two_models", "kinds_of_data", "mistakes", "mixed",
]  # fmt: skip


# One start of the ranks serves all cases.
@pytest.fixture(scope="module", params=INSTALLED)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"backend": request.param, **run(request.param, tmp_path_factory.mktemp(request.param), CALLS)}


def check_training(found: dict[str, Any]) -> None:
    assert found["difference"] < ROUNDING < found["moved"]
    assert found["same"], "the ranks' weights differ"
    assert found["class"]
    assert found["iterations"]


@pytest.mark.parametrize("call", TRAINING)
def test_ranks_train_like_one_with_all_their_batches(results: dict[str, Any], call: str) -> None:
    for found in results[call]:
        check_training(found)


def test_four_ranks_do_so_as_well(backend: str, tmp_path: Path) -> None:
    for found in run(backend, tmp_path, ["equality,adam,graph"], ranks=4)["equality,adam,graph"]:
        check_training(found)


def test_gradients_are_accumulated_before_they_are_averaged(results: dict[str, Any]) -> None:
    for found in results["accumulation"]:
        assert found["difference"] < ROUNDING
        assert found["same"]


@pytest.mark.parametrize("call", ["broadcast,1", "broadcast,4"])
def test_ranks_begin_with_the_weights_and_the_optimizer_of_the_root(results: dict[str, Any], call: str) -> None:
    for found in results[call]:
        assert all(found.values()), found


def test_metrics_are_those_of_all_samples(results: dict[str, Any]) -> None:
    for found in results["metrics"]:
        assert found["train"] < ROUNDING
        assert found["validation"] < ROUNDING
        assert found["same"]


def test_metrics_of_a_step_of_the_users_own(results: dict[str, Any]) -> None:
    for found in results["own_step"]:
        assert found["difference"] < ROUNDING
        assert found["value"] > 0.1


def test_the_learning_rate_warms_up_and_follows_its_schedule(results: dict[str, Any]) -> None:
    for found in results["rates"]:
        assert found["rates"] < ROUNDING
        assert found["logged"]
        assert found["velocity"] < ROUNDING
        assert found["after several steps at once"] < ROUNDING
        assert found["same"]


def test_ranks_with_other_numbers_of_batches_end_together(results: dict[str, Any]) -> None:
    for found in results["ending"]:
        assert found["epochs"] == [0, 1]
        assert found["same"]


def test_files_load_with_and_without_ringcore(results: dict[str, Any]) -> None:
    for found in results["saving"]:
        assert found["goes on"] == 0.0
        assert all(value for name, value in found.items() if name != "goes on"), found


def test_a_step_that_is_not_finite_on_one_rank_is_left_out_by_all(results: dict[str, Any]) -> None:
    for found in results["mixed"]:
        assert found == {"steps": 5, "finite": True, "same": True}


def test_local_layers_stay_a_ranks_own(results: dict[str, Any]) -> None:
    for found in results["local"]:
        assert found == {"own": True, "shared": True, "rows": True, "ended": True}


def test_batch_normalisation_over_all_ranks(results: dict[str, Any]) -> None:
    for found in results["batch_norm"]:
        assert found["difference"] < ROUNDING
        assert found["same"]


def test_gradients_of_embeddings(results: dict[str, Any]) -> None:
    for found in results["embedding"]:
        assert max(found["rows"], found["dense"]) < ROUNDING
        assert found["rows same"]
        assert found["dense same"]


def test_two_models_one_after_the_other(results: dict[str, Any]) -> None:
    for found in results["two_models"]:
        assert found == {"steps": 500, "same": True, "twice": True}


def test_every_kind_of_data(results: dict[str, Any]) -> None:
    for found in results["kinds_of_data"]:
        assert all(found.values()), found


def test_mistakes_are_explained(results: dict[str, Any]) -> None:
    for found in results["mistakes"]:
        assert "wrap it once" in found["twice"]
        assert "op=Average or op=Sum, not MAX" in found["op"]
        assert "not 'zip'" in found["compression"]
        assert "at least 1" in found["passes"]
        assert "cannot be shared by 2 ranks" in found["too few"]
        assert "lengths [8, 9]" in found["lengths"]
        assert "not 'lose'" in found["remainder"]
        assert "the optimizer has a schedule" in found["schedule"]
        assert "sparse_as_dense=True" in found["rows"] or results["backend"] != "tensorflow"
        assert "MismatchError" in found["models"]
        assert "kernel" in found["models"]


def test_xla_is_not_chosen_where_it_has_no_ops(results: dict[str, Any]) -> None:
    for found in results["beside_a_gpu"]:
        assert found["jit_compile"] is (results["backend"] == "jax")


def test_a_killed_rank_is_a_typed_error_out_of_fit(backend: str, tmp_path: Path) -> None:
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RINGCORE_JOB_ID": uuid.uuid4().hex}
    job["XDG_RUNTIME_DIR"] = str(tmp_path)
    # Without ringrun, which would end the survivor as well.
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(tmp_path), "lost"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**environment(backend), **job, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert processes[0].returncode == 0, said[0]
    found = json.loads((tmp_path / "lost.0.json").read_text())
    assert found["type"] == "PeerLostError", found
    assert "rank 1" in found["text"]
    assert found["size"] == 1
    assert found["went on"] == 50


NOTHING_WRAPPED = """
import keras
methods = lambda: (keras.Model.fit, keras.optimizers.LossScaleOptimizer.check_finite)
before = methods()
import ringcore_keras as ring
ring.init()
assert methods() == before, "Keras has changed though nothing is distributed"
ring.DistributedOptimizer(keras.optimizers.SGD())
assert all(a != b for a, b in zip(methods(), before))
changed = methods()
ring.DistributedOptimizer(keras.optimizers.SGD())
assert methods() == changed, "and once more"
"""


def test_keras_is_changed_by_the_first_wrapped_optimizer_and_not_by_an_import(backend: str) -> None:
    command = [sys.executable, "-c", NOTHING_WRAPPED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment(backend))
    assert done.returncode == 0, done.stderr
