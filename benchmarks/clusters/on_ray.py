"""Ray: see `__main__`."""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import common
import ray
import ringcore
from killing import error_after_kill
from ray.cluster_utils import Cluster
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ringcore_ray import RingExecutor, RingTrainer

TWO = ScalingConfig(num_workers=2)
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


def main(repeats: int, parts: Sequence[str]) -> None:
    """The rows of these parts."""
    for part in parts:
        PARTS[part](repeats)


def _fit(repeats: int) -> None:
    begin()
    trainers = {
        "RingTrainer": lambda: RingTrainer(_by_ringcore, scaling_config=TWO).fit() and None,
        "TorchTrainer": lambda: TorchTrainer(_by_torch, scaling_config=TWO).fit() and None,
    }
    common.interleaved("fit() to its end, 2 workers of Ray Train", repeats, trainers)
    ray.shutdown()


def _ready(repeats: int) -> None:
    """An actor takes its process along when it ends: only a fresh Ray has some that are up."""
    starts = {
        "RingExecutor": functools.partial(_with_idle_workers, _start),
        "Ray's own, a call to each": functools.partial(_with_idle_workers, _bare),
    }
    common.interleaved("start() of 2 actors, whose processes are up", repeats, starts)


def _with_idle_workers(start: Callable[[], float]) -> float:
    begin()
    deadline = time.monotonic() + 60
    while _idle_workers() < 2:
        assert time.monotonic() < deadline, "Ray has started no workers for its first driver"
        time.sleep(0.1)
    try:
        return start()
    finally:
        ray.shutdown()


def _idle_workers() -> int:
    """Of all Rays of this machine, which has no other one."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # It has ended.
            found += path.read_bytes().startswith(b"ray::IDLE")
    return found


def _executor(repeats: int) -> None:
    begin()
    starts = {"RingExecutor": _start, "Ray's own, a call to each": _bare}
    common.interleaved("start() of 2 actors, whose processes Ray starts", repeats, starts)
    with RingExecutor(num_workers=2) as executor:

        def again() -> None:
            executor.restart()
            common.check(executor.run(common.by_ringcore))

        common.interleaved("restart() to results of 4 MiB, 2 actors that are up", repeats, {"RingExecutor": again})
    ray.shutdown()


def _kills(repeats: int) -> None:
    begin()

    def actor() -> float:
        with RingExecutor(num_workers=2) as executor:
            return error_after_kill(lambda folder: executor.run(common.waits, [folder]), lambda pid: pid)

    common.interleaved("from the kill to the error, Ray", repeats, {"an actor": actor})
    ray.shutdown()
    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    ray.init(made.address, log_to_driver=False)

    def raylet() -> float:
        node = made.add_node(wait=False, **NODE)
        made.wait_for_nodes(300)
        (of_node,) = node.all_processes["raylet"]
        with RingExecutor(num_hosts=2) as executor:
            taken = error_after_kill(
                lambda folder: executor.run(common.waits, [folder]), lambda _pid: of_node.process.pid
            )
        made.remove_node(node, allow_graceful=False)
        return taken

    common.interleaved("from the kill to the error, Ray", repeats, {"a raylet": raylet})
    ray.shutdown()
    made.shutdown()


def _beside_ray(repeats: int) -> None:
    begin()
    # Ray's own processes, which run beside the ranks, are preferred to its workers.
    large = {"actors of Ray": functools.partial(_large, repeats), "ringrun": functools.partial(_by_ringrun, repeats)}
    common.interleaved("allreduce of 64 MiB, beside Ray's processes", repeats, large)
    ray.shutdown()
    os.environ.update(RAY_worker_niceness="0")
    begin()
    common.interleaved("allreduce of 64 MiB, beside Ray's processes and as nice as those", repeats, large)
    ray.shutdown()


def begin() -> None:
    """A Ray whose workers have this process's environment: a `runtime_env=` would want others than the first ones."""
    os.environ.update(OMP_NUM_THREADS="1")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)


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

    class Bare:  # Here, so that it goes as it is, and no module has to be imported for it.
        def call(self) -> None:
            """Something to wait for."""

    actors = [ray.remote(Bare).options(num_cpus=1, scheduling_strategy=strategy).remote() for _ in range(2)]
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


PARTS = {"fit": _fit, "ready": _ready, "executor": _executor, "kills": _kills, "nice": _beside_ray}
