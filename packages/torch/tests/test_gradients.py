"""Gradients through the collectives, and gradients of those, on several ranks, each a real process."""

from __future__ import annotations

from pathlib import Path

from support.starts import Findings, on, start_for

WORKER = Path(__file__).with_name("gradients_worker.py")
CASES = ["derivatives", "one_linear_loss", "without_gradients"]
two = start_for(WORKER, 2, "shm", *CASES)
three = start_for(WORKER, 3, "shm", *CASES)
gpu = start_for(WORKER, 2, "shm", *CASES, device="cuda")


@on("two", "three", "gpu")
def test_first_and_second_derivatives_of_the_collectives(results: Findings) -> None:
    for found in results["derivatives"]:
        ranks = len(results["derivatives"])
        assert len(found) == 13 + ranks + (5 if ranks > 2 else 0)
        assert all(found.values()), found


@on("two", "three", "gpu")
def test_a_linear_loss_takes_part_in_the_second_derivatives_of_others(results: Findings) -> None:
    ranks = len(results["one_linear_loss"])
    y = sum(range(1, ranks + 1))
    for found in results["one_linear_loss"]:
        # The losses are y^3 and, ranks - 1 times, 2 y; each rank's own first derivative is derived by all inputs.
        assert found["first"] == [3 * y**2 + 2 * (ranks - 1)]
        assert found["second"] == [ranks * 6 * y]


@on("two", "three", "gpu")
def test_what_has_no_gradient_says_so(results: Findings) -> None:
    for found in results["without_gradients"]:
        assert found.pop("beside integers") == [float(len(results["without_gradients"]))] * 2
        assert len(found) == 6
        for what, text in found.items():
            verb, op = what.split()
            assert text.startswith(f"{verb} '{verb}.") and f"with op={op} has no gradient" in text, text
