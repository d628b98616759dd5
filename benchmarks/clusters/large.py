"""64 MiB between tasks of Spark, actors of Ray and ranks of ringrun: see `__main__`."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence

import common
import on_ray
import on_spark
import ray
import ringcore
import ringcore_spark
from pyspark.ml.torch.distributor import TorchDistributor
from ringcore_ray import RingExecutor

# Of an allreduce, each time that ranks are started: so many that the start, when clusters work too, is a small part.
CALLS = 60


def main(repeats: int, parts: Sequence[str]) -> None:
    """Whoever's turn it is, the processes of both clusters are there beside the ranks."""
    session = on_spark.session()
    on_ray.begin()
    for part in parts:
        calls = {name: functools.partial(_median, start) for name, start in PARTS[part].items()}
        common.interleaved("allreduce of 64 MiB", repeats, calls)
    ray.shutdown()
    session.stop()


def _by_actors() -> list[float]:
    with RingExecutor(num_workers=2) as executor:
        taken: list[float] = executor.run(common.large_by_ringcore, [CALLS])[0]
    return taken


def _median(start: Callable[[], list[float]]) -> float:
    return statistics.median(start()[1:])


def _by_gloo() -> list[float]:
    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    taken: list[float] = distributor.run(common.large_by_gloo, CALLS)
    return taken


PARTS: dict[str, dict[str, Callable[[], list[float]]]] = {
    "own": {
        "ringrun": lambda: ringcore.run(common.large_by_ringcore, [CALLS], np=2)[0],
        "tasks of Spark": lambda: ringcore_spark.run(common.large_by_ringcore, (CALLS,), num_proc=2)[0],
        "actors of Ray": _by_actors,
    },
    "gloo": {"gloo, tasks of Spark": _by_gloo},
}
