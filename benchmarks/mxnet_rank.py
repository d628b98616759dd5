"""One rank of the MXNet benchmark; `run.py` starts it, each rank on a host of its own.

    python mxnet_rank.py BATCH STEPS ROUNDS

Rank 0 prints one JSON line: microseconds that a call of `allreduce_` takes to return, and milliseconds of the steps of
a net of 20 layers, one after the other without waits: alone, with ringcore's trainer; of all its gradients' allreduce
without the net, and beside a net that does not wait for it; and of that of the first layer, the last one to get its
gradient.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ringcore_mxnet as ring  # before mxnet: it helps the import along

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon

LAYERS, WIDTH = 20, 512  # 5.25 M parameters
CALLS = 1000


def trainer_of(kind: type[Any], **options: Any) -> tuple[Any, Any]:
    """A net and its trainer."""
    net = gluon.nn.HybridSequential()
    for _ in range(LAYERS):
        net.add(gluon.nn.Dense(WIDTH, in_units=WIDTH, activation="relu"))
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    return net, kind(net.collect_params(), "sgd", {"learning_rate": 1e-4, "momentum": 0.9}, **options)


def stepper(batch: int, net: Any, trainer: Any) -> Callable[[], None]:
    """A training step, which returns before it is done."""
    x = mx.nd.array(np.random.default_rng(ring.rank()).standard_normal((batch, WIDTH), np.float32))

    def step() -> None:
        with autograd.record():
            loss = (net(x) ** 2).mean()
        loss.backward()
        trainer.step(1)

    return step


def milliseconds(call: Callable[[], None], times: int) -> float:
    """Of a call, of many one after the other."""
    call()
    ring.barrier()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    mx.nd.waitall()
    return (time.perf_counter() - begin) / times * 1e3


def main() -> None:
    """Measure everything in turns."""
    batch, steps, rounds = map(int, sys.argv[1:])
    ring.init()
    net, trainer = trainer_of(ring.DistributedTrainer)
    ring.broadcast_parameters(net.collect_params())
    alone = stepper(batch, *trainer_of(gluon.Trainer, kvstore=None))

    def beside() -> None:
        alone()
        trainer.allreduce_grads()

    gradients = [param.grad() for param in net.collect_params().values()]
    calls = {
        "alone": alone,
        "ringcore": stepper(batch, net, trainer),
        "communication": trainer.allreduce_grads,
        "beside": beside,
        "last": lambda: ring.allreduce_(gradients[0], name="last").wait_to_read(),
    }
    found: dict[str, list[float]] = {name: [] for name in calls}
    enqueued = []
    small = [mx.nd.ones((4,)) for _ in range(CALLS)]
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(milliseconds(call, steps))
        ring.barrier()
        begin = time.perf_counter()
        for i, array in enumerate(small):
            ring.allreduce_(array, name=f"small {i}")
        enqueued.append((time.perf_counter() - begin) / CALLS * 1e6)
        mx.nd.waitall()
    if ring.rank() == 0:
        print(json.dumps({"enqueue_us": enqueued, "milliseconds": found}), flush=True)
    ring.barrier()


if __name__ == "__main__":
    main()
