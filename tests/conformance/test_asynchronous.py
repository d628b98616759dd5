"""Asynchronous sums are of some ranks' gradients, the same on all, and never of old ones: through each adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ranks

from conformance.asynchronous import STEPPING
from conformance.test_conformance import is_here

RANKS = 3
INSTALLED = [name for name, (_, modules, _) in STEPPING.items() if is_here(modules)]


def asynchronous(kind: str) -> dict:
    import random

    from conformance.asynchronous import RATE, SHAPES, STEPPING

    ringcore.init()
    made_by = STEPPING[kind][0]
    me, everybody = ringcore.rank(), range(ringcore.size())
    found: dict = {}

    def gradients(rank: int, step: int) -> dict:
        draw = np.random.default_rng([rank, step])
        return {name: draw.standard_normal(shape).astype("float32") for name, shape in SHAPES.items()}

    def same_everywhere(value) -> bool:
        return all(other == value for other in ringcore.allgather_object(value))

    def all_bytes(weights: dict) -> bytes:
        return b"".join(weights[name].tobytes() for name in SHAPES)

    # With all ranks and no staleness it is training together: the weights are those of plain SGD.
    for compression, off in (("none", 1e-6), ("fp16", 5e-3), ("bf16", 5e-2)):
        made = made_by(staleness=0, compression=compression)
        expected = {name: np.zeros(shape, "float32") for name, shape in SHAPES.items()}
        for step in range(4):
            made.step(gradients(me, step))
            average = {name: sum(gradients(rank, step)[name] for rank in everybody) / len(everybody) for name in SHAPES}
            expected = {name: expected[name] - RATE * average[name] for name in SHAPES}
            differ = max(float(np.abs(made.weights()[name] - expected[name]).max()) for name in SHAPES)
            assert differ < off, f"{compression}: after step {step} weights differ by {differ}"
        assert compression == "none" or differ > 1e-6, f"{compression}: nothing was rounded"
        assert made.owner.updates == 4 and made.owner.dropped == made.owner.oldest == 0
        made.owner.synchronize()
        assert same_everywhere(all_bytes(made.weights())), compression

    # Ranks of different paces: every rank has the same weights after as many updates.
    made, draw = made_by(staleness=1, threshold=1), random.Random(me)
    updates = made.steps._update_newest
    applied: list = []
    off: list = []

    def note(numbers, sums) -> None:
        arrays = [np.asarray(each) for each in sums]
        applied.append(b"".join(array.tobytes() for array in arrays))
        off.append(float(np.abs(arrays[1] - 1).max()))
        updates(numbers, sums)

    made.steps._update_newest = note
    for _ in range(2):
        for step in range(draw.randrange(1, 8)):
            for _ in range(draw.randrange(1 + 20 * me)):  # the last ranks are the slowest
                np.linalg.inv(np.eye(20) + draw.random())
            # Whoever contributes, the average of ones is one: nobody else adds anything.
            made.step({**gradients(me, step), "vector": np.ones(SHAPES["vector"], "float32")})
        made.owner.synchronize()
        assert made.owner.updates == len(applied)
        assert max(off) < 1e-6, off
        assert same_everywhere(all_bytes(made.weights()))
    assert same_everywhere(applied)
    assert made.owner.oldest <= 1

    # The first rank goes on alone, and what the last one brings too late is dropped.
    made, last = made_by(staleness=2, threshold=1), len(everybody) - 1
    updates, came = made.steps._update_newest, threading.Event()
    made.steps.started()

    def count(numbers, sums) -> None:
        updates(numbers, sums)
        if made.steps._updates == 5:
            came.set()

    made.steps._update_newest = count
    if me == 0:
        for step in range(6):
            made.step(gradients(me, step))
    if me == last:
        assert came.wait(60), "the first rank was held up"
        assert not all_bytes(made.weights()).strip(b"\0"), "somebody else changed this rank's weights"
        made.step(gradients(me, 0))
    made.owner.synchronize()
    assert made.owner.dropped == int(me == last)
    weights = made.weights()
    assert same_everywhere(all_bytes(weights))
    for name in SHAPES:
        alone = -RATE * sum(gradients(0, step)[name] for step in range(6))
        assert np.abs(weights[name] - alone).max() < 1e-5, name

    # A sum is stepped by the rate of the first rank that contributed.
    if made.set_rate is not None:
        made = made_by(staleness=0)
        made.set_rate(RATE if me == 0 else 8.0)
        made.step(gradients(0, 0))
        made.owner.synchronize()
        for name in SHAPES:
            assert np.abs(made.weights()[name] + RATE * gradients(0, 0)[name]).max() < 1e-6, name

    # Whoever is given other arguments is told so.
    made = made_by(staleness=1 + (me == 0))
    try:
        made.step(gradients(me, 0))
    except ringcore.MismatchError as error:
        found["told"] = "AsyncOptimizer with different arguments: staleness is 2 on rank" in str(error), str(error)
    return found


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("torch", "jax", "tensorflow", "mxnet") else pytest.param(kind, marks=pytest.mark.long)
        for kind in INSTALLED
    ],
)
def test_every_adapter_steps_by_the_same_sums(kind: str, tmp_path: Path) -> None:
    env = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", **STEPPING[kind][2]}
    for found in ranks.run(asynchronous, RANKS, tmp_path, kind, env=env):
        is_told, text = found.get("told", (False, "nobody said anything"))
        assert is_told, text
