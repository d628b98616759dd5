"""Ray: see `__main__`."""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Sequence

import common
import ray
import ringcore
from killing import error_after_kill
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ringcore_ray import RingExecutor, RingTrainer

TWO = ScalingConfig(num_workers=2)


def main(repeats: int, parts: Sequence[str]) -> None:
    """The rows of these parts."""
    for part in parts:
        PARTS[part](repeats)


def _fit(repeats: int) -> None:
    _begin()
    trainers = {
        "RingTrainer": lambda: RingTrainer(_by_ringcore, scaling_config=TWO).fit() and None,
        "TorchTrainer": lambda: TorchTrainer(_by_torch, scaling_config=TWO).fit() and None,
    }
    common.interleaved("fit() to its end, 2 workers of Ray Train", repeats, trainers)
    ray.shutdown()


def _executor(repeats: int) -> None:
    _begin()
    common.interleaved("start() of 2 actors", repeats, {"RingExecutor": _start, "Ray's own, a call to each": _bare})
    with RingExecutor(num_workers=2) as executor:

        def again() -> None:
            executor.restart()
            common.check(executor.run(common.by_ringcore))

        common.interleaved("restart() to results of 4 MiB, 2 actors that are up", repeats, {"RingExecutor": again})

    def killed() -> float:
        with RingExecutor(num_workers=2) as fresh:
            return error_after_kill(lambda folder: fresh.run(common.waits, [folder]), lambda pid: pid)

    common.interleaved("from the kill to the error, Ray", repeats, {"an actor": killed})
    ray.shutdown()


def _beside_ray(repeats: int) -> None:
    _begin()
    # Ray's own processes, which run beside the ranks, are preferred to its workers.
    large = {"actors of Ray": functools.partial(_large, repeats), "ringrun": functools.partial(_by_ringrun, repeats)}
    common.interleaved("allreduce of 64 MiB, beside Ray's processes", repeats, large)
    ray.shutdown()
    os.environ.update(RAY_worker_niceness="0")
    _begin()
    common.interleaved("allreduce of 64 MiB, beside Ray's processes and as nice as those", repeats, large)
    ray.shutdown()


def _begin() -> None:
    variables = {"PYTHONPATH": os.environ["PYTHONPATH"], "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})


def _large(repeats: int) -> float:
    with RingExecutor(num_workers=2) as executor:
        return statistics.median(executor.run(common.large_by_ringcore, [repeats])[0][1:])


def _by_ringrun(repeats: int) -> float:
    return statistics.median(ringcore.run(common.large_by_ringcore, [repeats], np=2)[0][1:])


def _start() -> float:
    executor = RingExecutor(num_workers=2)
    begin = time.perf_counter()
    executor.start()
    taken = time.perf_counter() - begin
    executor.shutdown()
    return taken


def _bare() -> float:
    begin = time.perf_counter()
    group = placement_group([{"CPU": 1}] * 2)
    group.wait(60)
    strategy = PlacementGroupSchedulingStrategy(group)
    actors = [ray.remote(common.Bare).options(num_cpus=1, scheduling_strategy=strategy).remote() for _ in range(2)]
    ray.get([actor.call.remote() for actor in actors])
    taken = time.perf_counter() - begin
    for actor in actors:
        ray.kill(actor)
    remove_placement_group(group)
    return taken


def _by_ringcore() -> None:
    common.check(common.by_ringcore())


def _by_torch() -> None:
    common.check(common.by_torch(group=False))


PARTS = {"fit": _fit, "executor": _executor, "large": _beside_ray}
