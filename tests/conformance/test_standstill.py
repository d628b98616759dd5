"""Ranks that wait for each other in the ways of a framework are told so, whatever else sleeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ranks

from conformance.test_conformance import INSTALLED

RANKS = 2
# Those that wait in a way of their own; the group of PyTorch has no names.
WAYS = ("numpy", "torch", "tensorflow", "tensorflow_function", "mxnet", "jax", "jax_jit")
KINDS = [name for name in INSTALLED if name in WAYS]


def wait_for_each_other(kind: str) -> dict:
    from conformance.adapters import load

    ringcore.init()
    adapter = load(kind)
    never = threading.Event()
    threading.Thread(target=never.wait, daemon=True).start()

    def reduce(name: str) -> list[float]:
        tensor = adapter.tensor(np.ones(5, np.float32))
        return adapter.array(adapter.collectives.allreduce(tensor, op=ringcore.Sum, name=name)).tolist()

    found = {"before": reduce("both"), "deadlock": caught(reduce, f"of rank {ringcore.rank()}")}
    return {**found, "after": reduce("both again")}


@pytest.mark.parametrize(
    "kind", [kind if kind in ("numpy", "jax_jit") else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS]
)
def test_ranks_that_wait_for_each_other_are_told(kind: str, tmp_path: Path) -> None:
    # Two minutes after a compilation nothing in JAX wakes by a clock anyway.
    limit = {"RINGCORE_TIMEOUT_S": "60"}
    for rank, result in enumerate(ranks.run(wait_for_each_other, RANKS, tmp_path, kind, env=limit)):
        assert result["before"] == result["after"] == [RANKS] * 5
        message = result["deadlock"]["message"]
        for words in (
            "DeadlockError",
            "every rank waits for another one",
            "rank 0 in allreduce 'of rank 0",
            "rank 1 in allreduce 'of rank 1",
        ):
            assert words in result["deadlock"]["type"] + message, f"rank {rank}: {message}"
