"""A forgotten broadcast is told, in any adapter that trains: written once, in the way of the suite beside this."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ranks

from conformance.beginnings import TRAINS
from conformance.test_conformance import is_here

RANKS = 3
INSTALLED = [name for name, (_, _, modules) in TRAINS.items() if is_here(modules)]


def begin(kind: str) -> dict:
    from conformance.beginnings import TRAINS

    ringcore.init()
    train, broadcasts, _ = TRAINS[kind]
    found = {}

    def attempt(case: str, seed: int, **options: bool) -> None:
        before = ringcore.statistics()["operations"]
        try:
            found[case] = {"weights": train(seed, **options)}
        except ringcore.MismatchError as error:
            found[case] = {"error": str(error)}
        found[case]["operations"] = ringcore.statistics()["operations"] - before

    own = 1 + max(ringcore.rank() - 1, 0)  # ranks 0 and 1 are alike
    attempt("forgotten", own)
    attempt("off", own, check_weights=False)
    attempt("alike", 1)
    attempt("alike, off", 1, check_weights=False)
    if broadcasts:
        attempt("broadcast", own, broadcast=True)
    return found


@pytest.mark.parametrize(
    "kind",
    [kind if kind in ("torch", "jax") else pytest.param(kind, marks=pytest.mark.long) for kind in INSTALLED],
)
def test_ranks_that_begin_with_different_weights_are_told_once(kind: str, tmp_path: Path) -> None:
    # What is fused counts as one operation, and by their timing.
    found = ranks.run(begin, RANKS, tmp_path, kind, env={"RINGCORE_FUSION_THRESHOLD_BYTES": "0"})
    for rank, cases in enumerate(found):
        message = cases["forgotten"].get("error", "")
        for words in ("different weights", "weight'", "ranks [0, 1] and another on ranks [2]", "check_weights=False"):
            assert words in message, f"rank {rank}: {message}"
        # One operation more in the whole job, and none in the steps that follow.
        assert cases["alike"]["operations"] == cases["alike, off"]["operations"] + 1, f"rank {rank}: {cases}"
    assert found[0]["off"]["weights"] != found[2]["off"]["weights"]
    for case in ("alike", "alike, off", *(["broadcast"] if "broadcast" in found[0] else [])):
        assert found[0][case]["weights"] == found[1][case]["weights"] == found[2][case]["weights"], case
