"""One rank of the Keras benchmark, on the backend that KERAS_BACKEND names; `run.py` starts it under ringrun.

    python keras_rank.py STEPS ROUNDS STRATEGY

`model.fit` with "ringcore"; "alone": every rank trains, nobody communicates; "keras": on JAX, keras.distribution's
DataParallel over the processes. Rank 0 prints a JSON line: milliseconds a step, of each epoch, and of the reduction of
as many bytes by the core. In the end the ranks of "ringcore" must hold the same weights.
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

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import ringcore
import ringcore_keras as ring

LAYERS, WIDTH, BATCH = 30, 912, 8  # 25 M parameters in 60 variables


def distribute() -> None:
    """Let Keras know the other processes, at a port that is free."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = ring.broadcast_object(probe.getsockname()[1])
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    keras.distribution.initialize(f"localhost:{port}", ring.size(), ring.rank())
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))


class Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Takes the time of each epoch's steps, from the end of the first: what an epoch costs to begin is not a step's."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            ringcore.barrier()
            self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.taken.append((time.perf_counter() - self._began) * 1e3)


def main() -> None:
    """Measure one strategy."""
    steps, rounds, strategy = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    ring.init()
    cores = sorted(os.sched_getaffinity(0))
    if ring.size() <= len(cores):
        os.sched_setaffinity(0, {cores[ring.rank()]})
    if strategy == "keras":
        distribute()
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((WIDTH,)), *(keras.layers.Dense(WIDTH, activation="relu") for _ in range(LAYERS))]
    )
    optimizer = keras.optimizers.SGD(1e-4)
    model.compile(optimizer=ring.DistributedOptimizer(optimizer) if strategy == "ringcore" else optimizer, loss="mse")
    x = np.random.default_rng(ring.rank()).standard_normal((BATCH * steps, WIDTH)).astype("float32")
    clock = Clock()
    model.fit(x, x, batch_size=BATCH, epochs=rounds, shuffle=False, verbose=0, callbacks=[clock])
    if strategy == "ringcore":
        weights = b"".join(np.asarray(weight).tobytes() for weight in model.get_weights())
        if len(set(ring.allgather_object(hashlib.sha256(weights).hexdigest()))) > 1:
            raise SystemExit("the ranks' weights differ")
    arrays = [np.ones(weight.shape, np.float32) for weight in model.get_weights()] if strategy != "keras" else []
    core = []
    for _ in range(20 if arrays else 0):
        ringcore.barrier()
        begin = time.perf_counter()
        ringcore.grouped_allreduce_(arrays, op=ringcore.Average, name="core")
        core.append((time.perf_counter() - begin) * 1e3)
    if ring.rank() == 0:
        taken = [value / (steps - 1) for value in clock.taken]
        print(json.dumps({"milliseconds": taken, "core": statistics.median(core) if core else None}), flush=True)
    ring.barrier()
    os._exit(0)  # gloo may abort in its own end


if __name__ == "__main__":
    main()
