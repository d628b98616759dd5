"""Ray: see `__main__`."""

from __future__ import annotations

import os

import common
import ray
from killing import error_after_kill
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from ringcore_ray import RingExecutor, RingTrainer

TWO = ScalingConfig(num_workers=2)


def main(repeats: int) -> None:
    """All rows of Ray."""
    variables = {"PYTHONPATH": os.environ["PYTHONPATH"], "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
    trainers = {
        "RingTrainer": lambda: RingTrainer(_by_ringcore, scaling_config=TWO).fit() and None,
        "TorchTrainer": lambda: TorchTrainer(_by_torch, scaling_config=TWO).fit() and None,
    }
    common.interleaved("fit() to its end, 2 workers of Ray Train", max(2, repeats // 2), trainers)
    executor = RingExecutor(num_workers=2)

    def start() -> None:
        executor.start()
        executor.shutdown()

    common.interleaved("start() and shutdown() of 2 actors", repeats, {"RingExecutor": start})
    executor.start()

    def again() -> None:
        executor.restart()
        common.check(executor.run(common.by_ringcore))

    common.interleaved("restart() to results of 4 MiB, 2 actors that are up", repeats, {"RingExecutor": again})
    executor.restart()
    common.tell("allreduce of 64 MiB", "actors of Ray", executor.run(common.large_by_ringcore, [repeats])[0])
    executor.shutdown()

    def killed() -> float:
        with RingExecutor(num_workers=2) as fresh:
            return error_after_kill(lambda folder: fresh.run(common.waits, [folder]), lambda pid: pid)

    common.interleaved("from the kill to the error, Ray", max(2, repeats // 2), {"an actor": killed})


def _by_ringcore() -> None:
    common.check(common.by_ringcore())


def _by_torch() -> None:
    common.check(common.by_torch(group=False))
