"""An exchange averages the same gradients to the same bits, and keeps the same errors, in any adapter that trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import ranks

from conformance.exchanges import TRAINS
from conformance.test_conformance import is_here

RANKS = 3
INSTALLED = [name for name, (_, modules, _) in TRAINS.items() if is_here(modules)]


def exchanges(kind: str) -> dict:
    import importlib.util

    from ringcore.adapter import Exchanges
    from ringcore.adapter import global_process_set as everybody

    from conformance.exchanges import SHAPES, TRAINS, told

    ringcore.init()
    train = TRAINS[kind][0]
    me = ringcore.rank()
    found: dict = {}

    def gradients(step: int) -> dict:
        draw = np.random.default_rng([me, step])
        held = {name: draw.standard_normal(shape).astype("float32") for name, shape in SHAPES.items()}
        held["matrix"][:60] = 0  # for blocks
        return held

    def compare(case: str, make, steps: int, members=None, start=None) -> dict:
        """So many steps in this framework, and the same of arrays of numpy alone; returns what was kept."""
        options = {} if members is None else {"process_set": members}
        names, step, exchange = train(compression=make(), **options)
        alone = make()
        if start is not None:
            exchange.load_state_dict(start)
            alone.load_state_dict(start)
        taken = [step(gradients(number)) for number in range(steps)]
        for number, averages in enumerate(taken):
            expected = {names[name]: gradient for name, gradient in gradients(number).items()}
            alone.average(expected, f"{case}.alone", members or everybody)
            for name in SHAPES:
                same = np.array_equal(averages[name], expected[names[name]])
                assert same, f"{case}: {name} of step {number} differs"
        ours, theirs = exchange.state_dict(), alone.state_dict()
        assert ours["warmup_steps"] == theirs["warmup_steps"], case
        assert set(ours["errors"]) == set(theirs["errors"]), case
        for each, error in theirs["errors"].items():
            assert np.array_equal(ours["errors"][each], error), f"{case}: the error of {each}"
        if case in ("topk", "onebit", "int4", "fp16", "bf16"):
            # What is on the way still is all that is missing.
            for name, each in names.items():
                whole = sum(gradients(number)[name] for number in range(steps)) - ours["errors"].get(each, 0)
                whole = ringcore.allreduce(np.ascontiguousarray(whole), name=f"{case}.{name}.whole")
                off = np.abs(sum(averages[name] for averages in taken) - whole).max()
                assert off < {"fp16": 1e-2, "bf16": 0.1}.get(case, 1e-4), f"{case}: {name} is off by {off}"
        found[case] = [float(averages[name].sum()) for averages in taken for name in SHAPES]
        return ours

    makes = {
        "powersgd": lambda: Exchanges.powersgd(2),
        "topk": lambda: Exchanges.topk(0.05),
        "onebit": Exchanges.onebit,
        "blocks": lambda: Exchanges.blocks(64),
        "int4": lambda: Exchanges.error_feedback("int4"),
        "fp16": lambda: Exchanges.error_feedback("fp16"),
        **({"bf16": lambda: Exchanges.error_feedback("bf16")} if importlib.util.find_spec("ml_dtypes") else {}),
        "warm": lambda: Exchanges.powersgd(2, warmup_steps=1),
    }
    for case, make in makes.items():
        compare(case, make, 3)
    # Who goes on from what was kept goes on as if nothing had been between.
    kept = compare("before", makes["powersgd"], 2)
    again = compare("after", makes["powersgd"], 1, start=kept)
    assert not np.array_equal(*(next(iter(state["errors"].values())) for state in (kept, again)))
    pair = ringcore.add_process_set([0, 2])
    if me != 1:
        compare("pair", makes["topk"], 2, members=pair)
    # Two nets whose parameters have the same names would be given what the other one has lost.
    if kind != "jax":  # where each step gives the function other arrays, of a net that its name alone tells
        shared, refusal = makes["topk"](), ""
        _, step, _ = train(compression=shared)
        step(gradients(0))
        try:
            _, other_step, _ = train(compression=shared)
            other_step(gradients(0))
        except ringcore.InvalidArgument as error:
            refusal = str(error)
        assert "TopK(ratio=0.05" in refusal and "make a compression of its own for each net" in refusal, refusal
        step(gradients(1))
    # Whoever trains with another one is told so.
    _, step, _ = train(compression=Exchanges.powersgd(2 if me == 0 else 4))
    with told(r"different arguments: compression is PowerSGD\(rank=2.* on ranks? .*0.* PowerSGD\(rank=4"):
        step(gradients(0))
    return found


@pytest.mark.parametrize(
    "kind",
    [kind if kind in ("torch", "jax") else pytest.param(kind, marks=pytest.mark.long) for kind in INSTALLED],
)
def test_an_exchange_does_the_same_in_every_framework(kind: str, tmp_path: Path) -> None:
    env = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", **TRAINS[kind][2]}
    found = ranks.run(exchanges, RANKS, tmp_path, kind, env=env)
    pairs = [each.pop("pair", None) for each in found]
    assert pairs[0] == pairs[2] is not None
    assert pairs[1] is None
    assert found[0] == found[1] == found[2]


def comes_late() -> dict:
    """As in an elastic job: the first rank has trained before, alone, and the second one has not."""
    from ringcore import adapter

    ringcore.init()
    me = ringcore.rank()
    everybody = adapter.global_process_set
    draw = np.random.default_rng(me)
    exchange = adapter.Exchanges.powersgd(2, warmup_steps=2)
    alone = ringcore.add_process_set([0])
    if me == 0:
        for _ in range(3):
            exchange.average({"matrix": draw.standard_normal((60, 50))}, "before", alone)
    found = {"before": exchange.warmup_steps, "states": []}
    theirs = ringcore.broadcast_object(exchange.state_dict(), 0)
    alike = adapter.Exchanges.powersgd(2)
    alike.load_state_dict({**theirs, "errors": exchange.state_dict()["errors"]})
    for step in range(2):
        held = {"matrix": draw.standard_normal((60, 50))}
        if step == 0:
            expected = {"matrix": held["matrix"].copy()}
            alike.average(expected, "alike", everybody)
        exchange.average_of_step(held, "step", everybody, who="trainer", arguments={"rank": me})
        assert step > 0 or np.array_equal(held["matrix"], expected["matrix"])
        state = exchange.state_dict()
        found["states"].append([state["warmup_steps"], held["matrix"].tolist(), state["queries"]["matrix"].tolist()])
    return found


def test_whoever_has_come_goes_on_where_the_others_are(tmp_path: Path) -> None:
    first, second = ranks.run(comes_late, 2, tmp_path, env={"RINGCORE_ELASTIC": "1", "OMP_NUM_THREADS": "1"})
    assert (first.pop("before"), second.pop("before")) == (0, 2)
    assert first == second


def comes_with_another() -> str:
    """As in an elastic job: the second rank sends more than the first one."""
    from ringcore import adapter

    ringcore.init()
    exchange = adapter.Exchanges.topk(0.1 if ringcore.rank() == 0 else 0.2)
    gradients = {"matrix": np.ones((60, 50))}
    try:
        exchange.average_of_step(gradients, "step", adapter.global_process_set, who="trainer", arguments={})
    except ringcore.RingcoreError as error:
        return str(error)
    return "went on"


def test_whoever_comes_with_another_exchange_is_refused(tmp_path: Path) -> None:
    _, second = ranks.run(comes_with_another, 2, tmp_path, env={"RINGCORE_ELASTIC": "1"})
    assert second.startswith("TopK(ratio=0.2, "), second
    assert second.endswith(
        "is not what the first rank averages with. Remedy: pass the same compression on all ranks"
    ), second


def begins_twice() -> list[str]:
    """The same exchange in two jobs of one process, and in the second one another argument of whoever trains."""
    from ringcore import adapter

    exchange = adapter.Exchanges.powersgd(2)
    found = []
    for job in range(2):
        ringcore.init()
        arguments = {"rate": job * ringcore.rank()}
        everybody = adapter.global_process_set
        try:
            for caller in ("generator", "critic"):
                gradients = {f"{caller}.matrix": np.ones((60, 50))}
                exchange.average_of_step(gradients, caller, everybody, who=caller, arguments=arguments)
            found.append(" ".join(exchange.state_dict()["queries"]))
        except ringcore.MismatchError as error:
            found.append(str(error))
        ringcore.shutdown()
    return found


def test_an_exchange_serves_several_callers_and_compares_again_in_another_job(tmp_path: Path) -> None:
    for first, second in ranks.run(begins_twice, 2, tmp_path):
        assert first == "generator.matrix critic.matrix"
        assert "generator" in second and "rate" in second


@pytest.mark.parametrize(
    ("values", "finite"), [([3e38] * 9, True), ([], True), ([1, np.inf], False), ([-np.inf], False), ([np.nan], False)]
)
def test_a_step_is_left_out_by_what_is_infinite_and_not_by_what_is_large(values: list[float], finite: bool) -> None:
    from ringcore.adapter.exchange import are_finite

    assert are_finite([np.zeros(3, np.float32), np.array(values, np.float32)]) is finite
