"""One rank of the JAX benchmark; `run.py` starts it under ringrun.

    python jax_rank.py BATCH STEPS ROUNDS

The strategies take turns in one process: "alone" (every rank trains, nobody communicates), "ringcore", and "jax" (its
own data parallelism: one program over the devices of all processes, with gloo). Rank 0 prints one JSON line:
milliseconds a step, the median of each round. In the end the ranks of "ringcore" must hold the same weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import ringcore_jax as ring

LAYERS, WIDTH = 30, 912  # 25 M parameters in 60 arrays


def loss(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    for layer in params:
        x = jax.nn.relu(x @ layer["weights"] + layer["bias"])
    return jnp.mean(x**2)


def stepper(optimizer: Any) -> Any:
    def step(params: Any, state: Any, x: jax.Array) -> tuple[Any, Any]:
        updates, state = optimizer.update(jax.grad(loss)(params, x), state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step, donate_argnums=(0, 1))


def connect() -> None:
    """Let JAX know the other processes, at a port that is free."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = ring.broadcast_object(probe.getsockname()[1])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", ring.size(), ring.rank())


def main() -> None:
    """Measure all strategies."""
    batch, steps, rounds = map(int, sys.argv[1:])
    ring.init()
    cores = sorted(os.sched_getaffinity(0))
    if ring.size() <= len(cores):
        os.sched_setaffinity(0, {cores[ring.rank()]})
    connect()
    plain = optax.sgd(1e-4, momentum=0.9)
    keys = jax.random.split(jax.random.key(0), LAYERS)
    start = [{"weights": jax.random.normal(key, (WIDTH, WIDTH)) / 22, "bias": jnp.zeros(WIDTH)} for key in keys]
    own = np.random.default_rng(ring.rank()).standard_normal((batch, WIDTH), np.float32)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "batch")
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    at_home = jnp.asarray(own)
    spread = jax.make_array_from_process_local_data(split, own)
    optimizers = {"alone": plain, "ringcore": ring.DistributedOptimizer(plain), "jax": plain}
    inputs = {"alone": at_home, "ringcore": at_home, "jax": spread}
    steppers = {name: stepper(optimizer) for name, optimizer in optimizers.items()}
    held = {}
    for name, optimizer in optimizers.items():
        params = jax.tree.map(np.asarray, start)
        params = jax.device_put(params, everywhere) if name == "jax" else jax.tree.map(jnp.array, params)
        held[name] = params, optimizer.init(params)
    found: dict[str, list[float]] = {name: [] for name in optimizers}
    for _ in range(rounds):
        for name, step in steppers.items():
            ring.barrier()
            taken = []
            for _ in range(steps):
                begin = time.perf_counter()
                held[name] = jax.block_until_ready(step(*held[name], inputs[name]))
                taken.append((time.perf_counter() - begin) * 1e3)
            found[name].append(statistics.median(taken))
    weights = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(held["ringcore"][0]))
    if len(set(ring.allgather_object(hashlib.sha256(weights).hexdigest()))) > 1:
        raise SystemExit("the ranks' weights differ")
    if ring.rank() == 0:
        print(json.dumps({"milliseconds": found}), flush=True)
    ring.barrier()


if __name__ == "__main__":
    main()
