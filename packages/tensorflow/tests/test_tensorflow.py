"""The TensorFlow adapter on several ranks, each a real process."""

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
# Twenty steps of float32 sums in another order; gradients and weights are about 1.
ROUNDING = 5e-6
# Differences of fifth order, of step 5e-4, of sums of sines in float64: the fifth derivative's term, 2e-15 times it.
DIFFERENCES = 1e-9


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TF_ENABLE_ONEDNN_OPTS": "0", "KERAS_BACKEND": "tensorflow"}


def run(folder: Path, cases: list[str], ranks: int, **variables: str) -> dict[str, list[dict[str, Any]]]:
    """Run cases of the worker, one after the other; returns what each rank found, by case."""
    command = [sys.executable, "-m", "ringcore", "run", "-np", str(ranks), sys.executable, str(WORKER), str(folder)]
    done = subprocess.run(
        [*command, *cases], capture_output=True, text=True, timeout=300, check=False,
        env={**environment(), **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return {case: [json.loads((folder / f"{case}.{rank}.json").read_text()) for rank in range(ranks)] for case in cases}


CASES = [
    "gradients", "control_flow", "many_in_flight", "large", "retracing", "side_effects", "saved_model", "training",
    "tapes", "aggregation", "slices", "two_threads", "places", "batch_norm", "sessions", "mistakes",
]  # fmt: skip


# One start of the ranks serves all cases.
@pytest.fixture(scope="module", params=[(2, "shm"), (3, "tcp")], ids=["2-shm", "3-tcp"])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    ranks, transport = request.param
    return run(tmp_path_factory.mktemp("results"), CASES, ranks, RINGCORE_TRANSPORT=transport)


def test_every_op_has_the_gradient_of_the_jobs_loss(results: dict[str, Any]) -> None:
    for found in results["gradients"]:
        assert max(found.values()) < DIFFERENCES, found


def test_loops_conditions_and_functions_that_are_called_twice(results: dict[str, Any]) -> None:
    for found in results["control_flow"]:
        assert set(found.values()) == {0.0}, found


def test_hundreds_are_in_flight_on_one_thread_in_opposite_order(results: dict[str, Any]) -> None:
    for found in results["many_in_flight"]:
        assert found == {"wrong": 0}


def test_results_in_the_engines_memory(results: dict[str, Any]) -> None:
    ranks = len(results["large"])
    for found in results["large"]:
        assert found == {"wrong": [], "mixed": [[ranks / 2], [ranks / 2]]}


def test_names_do_not_depend_on_how_often_a_rank_traces(results: dict[str, Any]) -> None:
    for found in results["retracing"]:
        assert found["found"] == found["expected"]


def test_what_nobody_looks_at_runs_as_well(results: dict[str, Any]) -> None:
    for found in results["side_effects"]:
        assert found == {"done": True}


def test_collectives_in_a_saved_model(results: dict[str, Any]) -> None:
    for found in results["saved_model"]:
        assert found == {"difference": 0.0}


def test_ranks_train_like_one_with_all_their_batches(results: dict[str, Any]) -> None:
    for found in results["training"]:
        for name, (difference, same) in found.items():
            assert difference < ROUNDING, name
            assert same, f"{name}: the ranks' weights differ"


def test_ways_of_using_a_tape(results: dict[str, Any]) -> None:
    for found in results["tapes"]:
        assert max(found.pop(name) for name in ("twice", "shared", "local", "layer")) == 0.0
        assert all(found.values()), found


def test_gradients_of_several_passes_are_reduced_together(results: dict[str, Any]) -> None:
    for found in results["aggregation"]:
        assert found["eager rounds"]
        assert found["function rounds"]
        assert max(found["eager"], found["function"]) < ROUNDING


def test_gradients_of_rows(results: dict[str, Any]) -> None:
    for found in results["slices"]:
        for name, value in found.items():
            assert value is True or (value is not False and value < 1e-15 * 4), (name, value)


def test_tapes_in_two_threads(results: dict[str, Any]) -> None:
    for found in results["two_threads"]:
        assert found == {"wrong": []}


def test_graphs_look_up_ranks_when_they_run(results: dict[str, Any]) -> None:
    for found in results["places"]:
        assert all(found.values()), found


def test_batch_normalisation_over_all_ranks(results: dict[str, Any]) -> None:
    for found in results["batch_norm"]:
        assert max(found.values()) < ROUNDING, found


def test_a_session_gets_what_the_root_has(results: dict[str, Any]) -> None:
    for found in results["sessions"]:
        assert found == dict.fromkeys(found, True)


def test_mistakes_are_explained(results: dict[str, Any]) -> None:
    for found in results["mistakes"]:
        for name in ("shapes", "shapes in a function"):
            assert found[f"{name} typed"].startswith("MismatchError: 'shapes' was submitted differently: rank 0:")
            assert "Remedy" in found[f"{name} typed"]
        assert "convert the tensor to a float dtype" in found["integers"]
        assert "complex128; convert it to one of uint8" in found["complex"]
        assert "dtype string" in found["strings"]
        assert "pass a root_rank of the process set" in found["root"]
        assert "give one split for each rank" in found["splits"]
        assert "not -1" in found["negative"]
        assert "op=MAX has no gradient" in found["gradient"]
        assert "a tf.GradientTape is needed, not str" in found["tape"]
        assert "wrap it once" in found["twice"]
        assert "jit_compile=False" in found["xla typed"]
        assert "eager mode only" in found["adasum"]
        assert "outside of tf.function" in found["join"]


def test_a_killed_rank_is_told_in_functions_and_eagerly_and_all_starts_anew(tmp_path: Path) -> None:
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
    for name in ("function", "eager"):
        assert found[name].startswith("PeerLostError: ")
        assert "rank 1" in found[name]
    assert "init()" in found["shut down"]
    assert found["again"] == [1.0, 1.0, 1.0]


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
