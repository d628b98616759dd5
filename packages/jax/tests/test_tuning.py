"""Ways to send gradients, tried in the first steps, outside of compiled programs, in one of a step and of many."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
import ringcore_jax as ring
from ringcore import adapter
from ringcore.adapter import gradients
from support.on_ranks import TWO, TWO_OVER_TCP, on
from support.trials import Trials, check_trials

LAYERS, WIDTH = 12, 16


def training() -> tuple[Any, Any, Any]:
    """A step, the parameters and the optimizer's state that all ranks begin with; each has a batch of its own."""
    keys = jax.random.split(jax.random.key(7), LAYERS)
    params = {f"w{i:02}": jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH for i, key in enumerate(keys)}
    inputs = jax.random.normal(jax.random.key(ring.rank()), (2, WIDTH))
    optimizer = ring.DistributedOptimizer(optax.sgd(0.1))

    def loss(params: Any) -> Any:
        outputs = inputs
        for weights in params.values():
            outputs = jnp.tanh(outputs @ weights)
        return jnp.square(outputs).mean()

    def step(params: Any, state: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    return step, params, optimizer.init(params)


def learnt(params: Any) -> list[bytes]:
    return [bytes(leaf) for leaf in jax.tree.leaves(params)]


def at_once(steps: int) -> list[bytes]:
    step, params, state = training()
    for _ in range(steps):
        params, state = step(params, state)
    return learnt(params)


def in_program(steps: int) -> list[bytes]:
    step, params, state = training()
    step = jax.jit(step, donate_argnums=(0, 1))
    for _ in range(steps):
        params, state = step(params, state)
    return learnt(params)


def in_loop(steps: int) -> list[bytes]:
    step, params, state = training()
    several = jax.jit(lambda held: jax.lax.scan(lambda held, _: (step(*held), None), held, length=10)[0])
    for _ in range(steps // 10):
        params, state = several((params, state))
    return learnt(params)


@on(TWO, TWO_OVER_TCP)
@pytest.mark.parametrize("train", [at_once, in_program, in_loop])
def test_ways_are_tried(train: Any, shared_folder: Path) -> None:
    check_trials(train, shared_folder, "buckets of 16000 bytes", ways=3)


@on(TWO)
def test_averages_have_derivatives_and_batches_while_ways_are_tried(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def squares(x: Any) -> Any:
        averages = ring.allreduce_gradients([x + i for i in range(12)], name="derived")
        return sum((each**2).sum() for each in averages)

    x = jnp.arange(200.0).reshape(2, 100) + ring.rank()
    of_one = jax.grad(squares)
    functions = [of_one, jax.jit(of_one), jax.vmap(squares), jax.jit(jax.vmap(of_one))]
    expected = [bytes(function(x)) for function in functions]
    trials = Trials(monkeypatch, shared_folder, "buckets of 1000 bytes")
    for function, result in zip(functions, expected, strict=True):
        assert [bytes(function(x + 0)) for _ in range(20)] == [result] * 20
    assert len(set(trials.steps)) > 1


@on(TWO)
def test_ranks_keep_one_order_where_xla_would_take_two(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 12
    current = adapter.context()
    tried = {"autotune": True, "autotune_file": str(shared_folder / "tuned.json"), "autotune_warmup_samples": 0}
    monkeypatch.setattr(current, "settings", dataclasses.replace(current.settings, **tried))
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 240_000)

    def slow(x: Any, steps: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, y: jnp.cos(y), x)

    @jax.jit
    def step(x: Any, steps: Any) -> Any:
        made = [jnp.cumsum(slow(x + i, steps[i])) for i in range(count)]
        averages = ring.allreduce_gradients(made, name="in order")
        return averages, ring.allreduce(x, name="in order: behind them")

    # On one rank what is to be sent last is ready first.
    steps = jnp.arange(count) * 20
    steps = steps if ring.rank() == 0 else steps[::-1]
    x = jnp.ones(20000)
    jax.block_until_ready(step(x, steps))
    timeline = shared_folder / "timeline.json"
    ring.start_timeline(str(timeline))
    for _ in range(60):
        jax.block_until_ready(step(x, steps))
    ring.stop_timeline()
    events = json.loads(timeline.read_text())["traceEvents"]
    negotiated = [event for event in events if event["ph"] == "X" and event["name"] == "negotiate"]
    names = []
    for rank in range(2):
        # What the ranks agree on is so quick that a timeline may have nothing of it.
        begun = [
            each
            for each in negotiated
            if each["pid"] == rank and each["args"]["tensor"].startswith("in order") and "autotune" not in str(each)
        ]
        names.append([event["args"]["tensor"] for event in sorted(begun, key=lambda event: event["ts"])])
    assert names[0] == names[1]
    assert len(names[0]) > 60 * 5
    assert len(set(names[0])) > count + 1  # several ways
    assert names[0][0] != "in order: behind them" == names[0][-1]
