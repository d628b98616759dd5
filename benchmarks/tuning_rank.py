"""One rank of the benchmark of tuning; `tuning.py` starts it.

    python tuning_rank.py ringcore RANK SIZE ROOT_ADDRESS KEY_FILE BATCH torch|tensorflow|jax

Rank 0 prints one JSON line: milliseconds a step of either optimizer and of computing alone, what was chosen, and after
how many steps. In the end all ranks hold the same weights.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from network_rank import ringcore_allreduce

WIDTH, LAYERS = 512, 8  # 8 MiB of gradients
ROUNDS = 5
STEPS = 3  # of a turn, behind one that is not counted
MOST_STEPS = 1000

# Takes a step, and gives all weights.
Training = tuple[Callable[[], Any], Callable[[], Any]]


def initial() -> list[Any]:
    """The weights of each layer."""
    draw = np.random.default_rng(0)
    return [(draw.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype("float32") for _ in range(LAYERS)]


def by_torch(inputs: Any, *, averaged: bool) -> Training:
    """A model of its own, and an optimizer."""
    import ringcore_torch
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential()
    for weights in initial():
        layer = torch.nn.Linear(WIDTH, WIDTH)
        layer.weight.data.copy_(torch.from_numpy(weights))
        torch.nn.init.zeros_(layer.bias)
        model.extend([layer, torch.nn.Tanh()])
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if averaged:
        optimizer = ringcore_torch.DistributedOptimizer(optimizer, model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.from_numpy(inputs)).square().mean().backward()
        optimizer.step()

    return step, lambda: torch.cat([each.detach().flatten() for each in model.parameters()]).numpy()


def by_tensorflow(inputs: Any, *, averaged: bool) -> Training:
    """The same in a `tf.function`, without biases and momentum."""
    import ringcore_tensorflow
    import tensorflow as tf

    model = [tf.Variable(weights, name=f"layer{i}") for i, weights in enumerate(initial())]
    given = tf.constant(inputs)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            outputs = given
            for weights in model:
                outputs = tf.tanh(outputs @ weights)
            loss = tf.reduce_mean(tf.square(outputs))
        asked = ringcore_tensorflow.DistributedGradientTape(tape) if averaged else tape
        for weights, gradient in zip(model, asked.gradient(loss, model), strict=True):
            weights.assign_sub(1e-3 * gradient)

    return step, lambda: np.concatenate([weights.numpy().ravel() for weights in model])


def by_jax(inputs: Any, *, averaged: bool) -> Training:
    """The same in `jax.jit`."""
    import jax
    import jax.numpy as jnp
    import ringcore_jax

    held = [[jnp.asarray(weights) for weights in initial()]]

    def loss(model: Any) -> Any:
        outputs = inputs
        for weights in model:
            outputs = jnp.tanh(outputs @ weights)
        return jnp.square(outputs).mean()

    @jax.jit
    def stepped(model: Any) -> Any:
        gradients = jax.grad(loss)(model)
        gradients = ringcore_jax.allreduce_gradients(gradients) if averaged else gradients
        return [weights - 1e-3 * gradient for weights, gradient in zip(model, gradients, strict=True)]

    def step() -> None:
        held[0] = jax.block_until_ready(stepped(held[0]))

    return step, lambda: np.concatenate([np.asarray(weights).ravel() for weights in held[0]])


FRAMEWORKS = {"torch": by_torch, "tensorflow": by_tensorflow, "jax": by_jax}


def main() -> None:
    """Tune, then measure."""
    rank, size = int(sys.argv[2]), int(sys.argv[3])
    ringcore_allreduce(rank, size, sys.argv[4], sys.argv[5])
    import ringcore
    from ringcore import adapter

    inputs = np.random.default_rng(rank).standard_normal((int(sys.argv[6]), WIDTH)).astype("float32")
    make = FRAMEWORKS[sys.argv[7]]
    tuners: list[Any] = []
    begin_trials = adapter.Tuner.__init__

    def seen(tuner: Any, *args: Any, **options: Any) -> None:
        begin_trials(tuner, *args, **options)
        tuners.append(tuner)

    adapter.Tuner.__init__ = seen  # type: ignore[method-assign]
    current = adapter.context()
    tunes = current.settings
    current.settings = dataclasses.replace(tunes, autotune=False)
    trained = {"alone": make(inputs, averaged=False), "static": make(inputs, averaged=True)}
    for step, _ in trained.values():
        step()  # which compiles it
    current.settings = tunes
    trained["tuned"] = make(inputs, averaged=True)
    trained["tuned"][0]()
    steps = 1
    while not tuners[0].decided and steps < MOST_STEPS:
        trained["tuned"][0]()
        steps += 1
    times: dict[str, list[float]] = {name: [] for name in trained}
    for turn in range(ROUNDS + 1):
        for name in list(trained) if turn % 2 else reversed(trained):
            ringcore.barrier()
            step, _ = trained[name]
            step()
            begin = time.perf_counter()
            for _ in range(STEPS):
                step()
            if turn > 0:  # the first one makes buffers, and tries plans
                times[name].append((time.perf_counter() - begin) / STEPS * 1e3)
    for name in ("static", "tuned"):
        weights = trained[name][1]()
        if not (ringcore.allreduce(weights, op=ringcore.Min, name="low") == weights).all():
            raise SystemExit(f"{name}: the ranks hold different weights")
    if rank == 0:
        chosen = str(tuners[0].way)
        print(json.dumps({"milliseconds": times, "chosen": chosen, "steps_to_decide": steps}), flush=True)


if __name__ == "__main__":
    main()
