"""The PyTorch adapter on several ranks, each a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.starts import Findings, on, start, start_for

WORKER = Path(__file__).with_name("worker.py")
# Eight steps of sums in another order: some units in the last place of float64.
ROUNDING = 1e-13


TRAINING = ["sgd", "adamw", "accumulate", "clip"]
two = start_for(
    WORKER, 2, "shm", "operations", *TRAINING, "states", "mistakes", "changed_models", "amp", "rounds", "uneven",
    "adasum", "compression", "sync_batch_norm", "groups", "grouped_rows", "compiled", "default_device", "left_out",
    "predivided", "from_a_root",
)  # fmt: skip
three = start_for(WORKER, 3, "shm", "operations", *TRAINING, "uneven", "sparse")
# Over TCP buckets are reduced during backward; in shared memory only where the machine has a core to spare for it.
tcp = start_for(WORKER, 2, "tcp", "operations", *TRAINING, "mistakes", "rounds")
# Ranks share a GPU where there is only one.
gpu = start_for(
    WORKER, 2, "shm", "operations", *TRAINING, "states", "mistakes", "amp", "rounds", "uneven", "compression",
    "sync_batch_norm", "groups", "grouped_rows", "left_out", "predivided", "from_a_root", "streams", device="cuda",
)  # fmt: skip
one_gpu = start_for(WORKER, 1, "shm", *TRAINING, "streams", device="cuda")


@on("two", "three", "tcp", "gpu")
def test_every_operation_on_every_dtype(results: Findings) -> None:
    for found in results["operations"]:
        assert found["wrong"] == []


@on("two", "three", "tcp", "gpu", "one_gpu")
@pytest.mark.parametrize("case", TRAINING)
def test_ranks_train_like_one_with_all_their_batches(results: Findings, case: str) -> None:
    for found in results[case]:
        assert found["difference"] < ROUNDING
        assert found["equal"], "the ranks' weights differ"
        assert found["nobody"], "a layer that no rank used got a gradient"
        assert found["class"], "the wrapped optimizer is not of its own class any more"


@on("two", "gpu")
def test_optimizer_state_is_broadcast(results: Findings) -> None:
    for found in results["states"]:
        assert all(found.values()), found


@on("two", "tcp", "gpu")
def test_mistakes_are_explained_and_training_goes_on(results: Findings) -> None:
    for found in results["mistakes"]:
        assert "backward_passes_per_step = 1" in found["twice"]
        assert "call optimizer.synchronize() before clipping" in found["clipped"]
        assert "float32" in found["complex"]
        for name in ("waves SUM", "waves ADASUM"):
            assert "'waves' is a parameter of torch.complex64" in found[name]
            assert "make torch.view_as_real(parameter) the parameter" in found[name]
        assert "meta" in found["device"]
        assert "a tensor of PyTorch is needed, not list" in found["list"]
        assert "a tensor of PyTorch is needed, not str" in found["text"]
        assert found["equal"]


def test_models_that_change_after_wrapping(two: Findings) -> None:
    for found in two["changed_models"]:
        assert "'weight' was a parameter of torch.float32 on the CPU when its optimizer was wrapped" in found.pop(
            "moved"
        )
        assert "wrapped again by a later DistributedOptimizer" in found.pop("replaced")
        assert "this is a copy of a DistributedOptimizer" in found.pop("copied optimizer")
        assert all(found.values()), found


@on("two", "gpu")
def test_grad_scaler_and_autocast(results: Findings) -> None:
    for found in results["amp"]:
        # The infinity of rank 1 halves the scale of all ranks.
        assert found == {f"unscales {how}": [[1024.0, 512.0, 512.0, 512.0], True, True] for how in (False, True)}


@on("two", "tcp", "gpu")
def test_rounds_that_end_in_other_ways(results: Findings) -> None:
    for found in results["rounds"]:
        assert "was changed while its average was on the way" in found.pop("replaced")
        assert "wrap it once" in found.pop("twice")
        assert found.pop("turned") == [-2.0, -1.0]
        assert all(found.values()), found


def test_the_default_device_is_the_users_alone(two: Findings) -> None:
    for found in two["default_device"]:
        assert all(found.values()), found


@on("two", "gpu")
def test_parameters_and_state_of_the_rank_that_is_named(results: Findings) -> None:
    for found in results["from_a_root"]:
        assert all(found.values()), found


@on("two", "gpu")
def test_layers_that_a_rank_does_not_use(results: Findings) -> None:
    for found in results["left_out"]:
        assert all(found.values()), found


@on("two", "gpu")
def test_an_average_in_two_steps(results: Findings) -> None:
    for found in results["predivided"]:
        assert all(found.values()), found


@on("gpu", "one_gpu")
def test_streams(results: Findings) -> None:
    for found in results["streams"]:
        assert all(found.values()), found


def test_a_compiled_model_takes_the_same_steps(two: Findings) -> None:
    for found in two["compiled"]:
        # Three steps, each with sums over 4000 columns in another order.
        assert found["difference"] < 3 * 4000 * sys.float_info.epsilon
        assert found["warnings"] == []


@on("two", "three", "gpu")
def test_ranks_with_different_numbers_of_batches_join(results: Findings) -> None:
    for found in results["uneven"]:
        assert found["last"] == len(results["uneven"]) - 1
        assert found["equal"]


def test_an_exception_in_a_hook_of_one_rank_ends_all(tmp_path: Path) -> None:
    done = start(WORKER, tmp_path, 2, "fails_in_a_hook")
    assert done.returncode == 1
    assert "ValueError: not this gradient" in done.stderr
    assert "rank 1 has left (it raised ValueError: not this gradient)" in done.stdout + done.stderr


def test_adasum(two: Findings) -> None:
    # a.b = 1, |a|^2 = 1, |b|^2 = 2: a / 2 + b * 3 / 4; of the first columns alone, which are equal, their average.
    expected = [1.25, 0.75]
    for found in two["adasum"]:
        assert found["allreduce"] == found["in place"] == found["step"] == expected
        assert found["grouped"] == [expected, expected]
        assert found["async"] == [[1.0], [1.0]]
        assert "Adasum takes floats" in found["integers"]
        assert "no backward_passes_per_step" in found["passes"]


@on("two", "gpu")
def test_compression_sends_16_bits_and_ranks_stay_equal(results: Findings) -> None:
    for found in results["compression"]:
        assert found["none"] == [[3.0, 3 + 3 * 2**-9, 3000.0], "torch.float32"]
        # 1 + 2^-9 and the sums fit float16's eleven bits; of bfloat16's eight, 1000 and 2000 need all, 3000 one more.
        assert found["fp16"] == found["none"]
        assert found["bf16"] == [[3.0, 3.0, 3008.0], "torch.float32"]
        assert all(found[f"{name} weights"][0] for name in ("none", "fp16", "bf16"))


def test_sparse_gradients_train_like_one_rank(three: Findings) -> None:
    for rank, found in enumerate(three["sparse"]):
        assert found["rows"]
        assert found["difference False"] < ROUNDING
        assert found["difference True"] < ROUNDING
        # At step 2 rank 1 has no gradient of its own.
        assert {found[f"layout False {step}"] for step in range(4)} == {"torch.sparse_coo"}, rank
        assert {found[f"layout True {step}"] for step in range(4)} == {"torch.strided"}, rank


@on("two", "gpu")
def test_sync_batch_norm_is_one_batch_norm_over_all_batches(results: Findings) -> None:
    for found in results["sync_batch_norm"]:
        assert found["worst"] < 1e-12
        assert found["batches"] == 2
        # Values up to 5 with 11 and with 8 bits: less than from one to the next.
        for dtype, distance in (("torch.float16", 2**-8), ("torch.bfloat16", 2**-5)):
            kind, difference = found["halves"][dtype]
            assert kind == dtype and difference < distance, found["halves"]


@on("two", "gpu")
def test_groups_of_gradients(results: Findings) -> None:
    for found in results["groups"]:
        assert (found["none"], found["number"], found["lists"]) == (1, 2, 3)
        assert found["equal"]
        assert "at least 1" in found["zero"]
        assert "does not have" in found["foreign"]


@on("two", "gpu")
def test_grouped_rows(results: Findings) -> None:
    assert results["grouped_rows"] == [
        {"gathered": [[0.0, 1.0, 1.0], [0, 0, 1, 1]], "shares": [[0.0, 2.0, 4.0], [2.0, 2.0]]},
        {"gathered": [[0.0, 1.0, 1.0], [0, 0, 1, 1]], "shares": [[6.0, 8.0, 10.0], [2.0, 2.0]]},
    ]


def test_a_core_of_another_version_is_refused_at_import(tmp_path: Path) -> None:
    metadata = tmp_path / "ringcore_torch-9.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ringcore-torch\nVersion: 9.9\n")
    done = subprocess.run(
        [sys.executable, "-c", "import ringcore_torch"], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "ImportError: ringcore-torch 9.9 works with ringcore 9.9, but ringcore 0.1.0 is installed" in done.stderr
    assert "pip install ringcore==9.9 ringcore-torch==9.9" in done.stderr
