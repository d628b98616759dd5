"""One worker of the comparison, on a host of its own; `measure.py` starts it.

    python worker.py ringcore|dist_sync RANK WORKERS STEPS

Prints one JSON line: milliseconds of the steps and of their communication, the weights' digest, and how far they lie
from those of one process that trained with the batches of all workers. Servers and the scheduler are
`python -c "import mxnet"`, with variables that MXNet reads.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from setting import BATCH, COMPUTE_S, LAYERS, LEARNING_RATE, WARM_STEPS, WIDTH


def trainer_of(system: str, params: Any, workers: int) -> tuple[gluon.Trainer, int]:
    """What exchanges gradients, and the batch size that its `step` takes: ringcore averages, servers sum."""
    options = {"learning_rate": LEARNING_RATE}
    if system == "ringcore":
        import ringcore_mxnet as ring

        ring.init()
        return ring.DistributedTrainer(params, "sgd", options), BATCH
    return gluon.Trainer(params, "sgd", options, kvstore=system), workers * BATCH


def perceptron() -> gluon.nn.HybridSequential:
    """The same weights in every process."""
    mx.random.seed(1)
    np.random.seed(1)
    net = gluon.nn.HybridSequential()
    for layer in range(LAYERS):
        # Smooth: at the kink of a relu the last bit of a sum could decide about a gradient.
        net.add(gluon.nn.Dense(WIDTH, in_units=WIDTH, activation="tanh" if layer + 1 < LAYERS else None))
    net.initialize(mx.init.Xavier(magnitude=2))
    return net


def batch_of(rank: int, step: int) -> tuple[Any, Any]:
    """A worker's samples and targets in one step."""
    numbers = np.random.RandomState(1000 * step + rank)
    samples, targets = (numbers.standard_normal((BATCH, WIDTH)).astype(np.float32) for _ in range(2))
    return mx.nd.array(samples), mx.nd.array(targets)


def backward(net: Any, rank: int, step: int) -> None:
    """Gradients of the summed loss of a worker's samples."""
    samples, targets = batch_of(rank, step)
    with autograd.record():
        loss = gluon.loss.L2Loss()(net(samples), targets)
    loss.backward()
    mx.nd.waitall()


def weights_of(net: Any) -> list[np.ndarray[Any, Any]]:
    """Copies, in the order of the layers."""
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def reference(workers: int, steps: int) -> list[np.ndarray[Any, Any]]:
    """The weights of one process that takes the batches of all workers in every step."""
    net = perceptron()
    for parameter in net.collect_params().values():
        parameter.grad_req = "add"
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": LEARNING_RATE}, kvstore=None)
    for step in range(steps):
        net.collect_params().zero_grad()
        for rank in range(workers):
            backward(net, rank, step)
        trainer.step(workers * BATCH)
    return weights_of(net)


def distance(ours: list[np.ndarray[Any, Any]], theirs: list[np.ndarray[Any, Any]]) -> float:
    """Largest difference of two weights."""
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


def busy_seconds() -> float:
    """What all cores of the machine have worked so far."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    ticks = dict(zip(names, map(int, Path("/proc/stat").read_text().split()[1:9]), strict=True))
    return (sum(ticks.values()) - ticks["idle"] - ticks["iowait"]) / 100


def main() -> None:
    """Train, time, verify."""
    system, rank, workers, steps = sys.argv[1], *map(int, sys.argv[2:5])
    net = perceptron()
    before = weights_of(net)
    trainer, samples = trainer_of(system, net.collect_params(), workers)
    step_ms, communication_ms, compute_ms = [], [], []
    busy = began = 0.0
    for step in range(WARM_STEPS + steps):
        if step == WARM_STEPS:
            busy, began = busy_seconds(), time.perf_counter()
        begin = time.perf_counter()
        backward(net, rank, step)
        computed = time.perf_counter()
        time.sleep(max(0.0, COMPUTE_S - (computed - begin)))
        ready = time.perf_counter()
        trainer.step(samples)
        mx.nd.waitall()
        end = time.perf_counter()
        step_ms.append((end - begin) * 1e3)
        communication_ms.append((end - ready) * 1e3)
        compute_ms.append((computed - begin) * 1e3)
    busy = (busy_seconds() - busy) / (time.perf_counter() - began)
    weights = weights_of(net)
    found = {
        "rank": rank,
        "step_ms": step_ms[WARM_STEPS:],
        "communication_ms": communication_ms[WARM_STEPS:],
        "compute_ms": compute_ms[WARM_STEPS:],
        "busy_cores": busy,
        "digest": hashlib.sha256(b"".join(array.tobytes() for array in weights)).hexdigest(),
    }
    if rank == 0:
        expected = reference(workers, WARM_STEPS + steps)
        found |= {"error": distance(weights, expected), "moved": distance(weights, before)}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
