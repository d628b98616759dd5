"""Scripts for Horovod's TensorFlow and Keras interfaces, as they are under the alias."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def start(*command: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command], capture_output=True, text=True, timeout=300, check=False, cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **variables},
    )  # fmt: skip


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return start(sys.executable, "-c", code, **variables)


def on_two_ranks(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = Path(sys.executable).with_name("horovodrun")
    return start(str(launcher), "-np", "2", sys.executable, str(HERE / script), *arguments)


def test_a_script_with_a_tape_runs_as_it_is(tmp_path: Path) -> None:
    done = on_two_ranks("script_tensorflow.py", str(tmp_path / "found"))
    assert done.returncode == 0, done.stdout + done.stderr
    expected = "[[1.0, 1.0], [0, 2], [0, 1, 1], [1, 1], [1.0], [0, 10], [1, 1], [0.0, 2.0], [2.0], [2.0, 2.0]]"
    assert (tmp_path / "found").read_text() == f"{expected} {{'rank': 1}} True True\n"
    assert (tmp_path / "found.checkpoint-1.index").exists()


def test_a_script_with_fit_runs_as_it_is(tmp_path: Path) -> None:
    done = on_two_ranks("script_keras.py", str(tmp_path / "found"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "found").read_text() == "True ['accuracy', 'loss', 'lr'] 0.02 0.5 Adam\n"
    assert "the warm-up is done" in done.stdout
    files = {"found", "found.best.keras", *(f"found.epoch-{epoch}.keras" for epoch in (1, 2, 3))}
    assert {path.name for path in tmp_path.iterdir()} == files


@pytest.mark.long
def test_a_script_that_fits_before_its_elastic_state_is_given_out_runs_as_it_is(tmp_path: Path) -> None:
    launcher = Path(sys.executable).with_name("horovodrun")
    command = [str(launcher), "-np", "2", "--min-np", "1", sys.executable, str(HERE / "script_elastic_keras.py")]
    done = start(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

    def told(event: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / event).read_text().splitlines()]

    begun, ended = told("begin"), told("end")
    # Both, the one that is left, and both again: it and who has come.
    assert [(line["size"], line["rate"]) for line in begun] == [(2, 0.02)] * 2 + [(1, 0.01)] + [(2, 0.02)] * 2
    left = begun[2]["pid"]
    assert begun[2]["epoch"] == 1 and left in {line["pid"] for line in begun[:2]} & {line["pid"] for line in begun[3:]}
    assert begun[0]["weights"] == begun[1]["weights"] and begun[3]["weights"] == begun[4]["weights"]
    assert [(line["size"], line["epoch"]) for line in ended] == [(2, 4)] * 2
    assert ended[0]["weights"] == ended[1]["weights"]


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found, by case: one start of the ranks serves all."""
    path = tmp_path_factory.mktemp("differences") / "found"
    done = on_two_ranks("differences_tensorflow.py", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(Path(f"{path}.{rank}").read_text()) for rank in range(2)]


def test_what_a_session_broadcasts_is_the_roots(differences: list[dict[str, Any]]) -> None:
    assert [found["broadcasts_in_a_session"] for found in differences] == [[1.0] * 3] * 2


def test_integers_are_cut_towards_zero(differences: list[dict[str, Any]]) -> None:
    shares = [[-5], [4]]
    for found, share in zip(differences, shares, strict=True):
        expected = [[-5, 4], [-3, 1], [-3, 2], share, [-2, 1], [0.5]]
        assert found["integers_are_cut_towards_zero"] == expected


def test_kerases_operations_give_tensors(differences: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(differences):
        expected = [[-5, 4], [-3, 1], [[-14], [6]][rank], [0, 1], [-5, 5]]
        assert found["kerases_operations_give_tensors"] == expected


def test_gradients_are_averages(differences: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(differences):
        assert found["gradients_are_averages"] == {
            "allgather": [[1.5, 1.5]] * 2,
            "broadcast": [[1.5 * rank] * 2] * 2,
            "sum": [[2.0, 4.0]] * 2,
            "average": [[2.0, 4.0]] * 2,
        }


def test_rows_alone_and_among_tensors(differences: list[dict[str, Any]]) -> None:
    for found in differences:
        average = [[0.5], [2.5], [0.0], [0.0]]
        assert found["rows"]["values"] == [average, [[1], [2]], average]
        assert [kinds[0] for kinds in found["rows"]["refused"]] == ["NotImplementedError"] * 2


def test_errors_are_tensorflows_and_ringcores(differences: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(differences):
        expected = dict.fromkeys(["rows", "splits", "scalar", "set"], "InvalidArgumentError")
        expected["shapes"] = "FailedPreconditionError"
        if rank == 1:
            expected["splits"] = "FailedPreconditionError"  # they are rank 0's mistake
        for name, kind in expected.items():
            assert {kind, "RingcoreError"} <= set(found["errors"][name])
            assert kind in found["errors"][f"{name} in a function"]


def test_process_sets_are_registered_once(differences: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(differences):
        found = result["process_sets"]
        assert all("ValueError" in found[name] for name in ("duplicates", "twice", "fake"))
        assert found["numbers"] == [1, 0, 2]
        world, first = "ProcessSet(process_set_id=0, ranks=[0, 1]", "ProcessSet(process_set_id=1, ranks=[0]"
        assert found["texts"] == [f"{world}, mpi_comm=None)", f"{first}, mpi_comm=None)"]
        assert found["sizes"] == [1, 1 - rank]
        assert found["removed"] == [True, True, False, False]
        assert "ranks=[0]" in found["again"]


def test_gradients_that_stay_a_ranks_own(differences: list[dict[str, Any]]) -> None:
    assert [found["tapes"] for found in differences] == [[[1.0, 6.0], [2.0, 4.0]], [[2.0, 6.0], [4.0, 8.0]]]


def test_optimizers_and_hooks_of_tensorflow_1(differences: list[dict[str, Any]]) -> None:
    assert [found["optimizers_of_sessions"] for found in differences] == [[2.0, 1.25]] * 2


def test_gradients_of_passes_are_averaged_or_added_up(differences: list[dict[str, Any]]) -> None:
    assert [found["gradients_of_passes"] for found in differences] == [[-1.125, 1, -2.25, 1]] * 2


def test_an_import_changes_nothing_of_keras() -> None:
    done = python(
        "import keras, ringcore_keras, ringcore_tensorflow, tensorflow as tf\n"
        "def of_keras():\n"
        "    kinds = keras.Model, keras.optimizers.Optimizer, keras.layers.BatchNormalization, keras.Variable\n"
        "    return [dict(vars(base)) for kind in kinds for base in kind.__mro__], dir(tf.keras.losses)\n"
        "before = of_keras()\n"
        "import horovod.tensorflow, horovod.tensorflow.keras, horovod.keras\n"
        "print(before == of_keras())\n"
    )
    assert done.stdout.endswith("True\n"), done.stdout + done.stderr


def test_lines_of_keras_2_work(differences: list[dict[str, Any]]) -> None:
    assert [found["lines_of_keras_2"] for found in differences] == [[True, 1.5, 3.0, 6]] * 2


def test_elastic_states_begin_with_rank_0s(differences: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(differences):
        variables, model, batch = result["elastic_states"]
        assert variables == [[1.0, float(rank), 20], [1.0, 7.0, 20], [1.0, 7.0, 31]]
        own = 1.0 + rank
        assert model == [[own, 0.0, 20], [7.0, 0.0, 20], [7.0, 0.0, 31]]
        assert batch == 0


def test_what_is_sent_of_tensorflows_gradients_is_sent_of_kerases() -> None:
    done = python(
        """
from horovod.keras.optimizer import name_of
from horovod.tensorflow import Compression

print(*(name_of(getattr(Compression, name)) for name in ("none", "fp16", "bf16", "int8", "int4")))
print(name_of(Compression.powersgd(2)), name_of("int8"))
""",
        KERAS_BACKEND="tensorflow",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "none fp16 bf16 int8 int4\nPowerSGD(rank=2, warmup_steps=0) int8\n"


def test_what_has_no_counterpart_says_what_to_write() -> None:
    attempts = {
        "DistributedOptimizer(object())": ["object is no optimizer of Keras"],
        "broadcast_global_variables(0)": ["BroadcastGlobalVariablesCallback(0)"],
    }  # fmt: skip
    old = "tf.compat.v1.train.AdamOptimizer()"
    of_keras = ["is an optimizer of TensorFlow 1, and", "hvd.DistributedOptimizer(keras.optimizers.Adam(...))"]
    calls = [
        (f"{module}.{call}", words)
        for module in ("horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras")
        for call, words in attempts.items()
    ]
    calls.append((f"horovod.keras.DistributedOptimizer({old})", of_keras))
    calls.append(
        (f"horovod.tensorflow.DistributedOptimizer({old}, backward_passes_per_step=2)", ["SGD(...), backward"])
    )
    code = (
        "import tensorflow as tf, horovod.tensorflow, horovod.tensorflow.keras, horovod.keras\n"
        f"for call, words in {calls!r}:\n"
        "    try:\n"
        "        eval(call)\n"
        "    except Exception as error:\n"
        "        print(call, [word for word in words if word not in str(error)])\n"
        "    else:\n"
        "        print(call, 'worked')\n"
    )
    done = python(code)
    assert done.stdout.splitlines() == [f"{call} []" for call, _ in calls], done.stdout + done.stderr


def test_modules_that_scripts_import_from() -> None:
    done = python(
        "from horovod.tensorflow.mpi_ops import size_op, rank_op\n"
        "from horovod.tensorflow.functions import broadcast_variables, allgather_object\n"
        "from horovod.tensorflow.compression import Compression\n"
        "from horovod.tensorflow.gradient_tape import PartialDistributedGradientTape\n"
        "from horovod.tensorflow.keras.callbacks import MetricAverageCallback\n"
        "from horovod.keras.callbacks import LearningRateScheduleCallback\n"
        "import horovod.tensorflow, horovod.tensorflow.keras, horovod.keras\n"
        "for hvd in (horovod.tensorflow, horovod.tensorflow.keras, horovod.keras):\n"
        "    assert all(hasattr(hvd, name) for name in hvd.__all__)\n"
        "    assert hvd.gloo_built() and isinstance(hvd.mpi_built(), bool)\n"
    )
    assert done.returncode == 0, done.stderr
