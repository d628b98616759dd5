"""A script with Horovod's RayExecutor, on a real Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
from horovod.ray import RayExecutor


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    if ray.is_initialized():  # by the tests of ringcore-ray, beside which these run
        yield
        return
    path = str(Path(__file__).parents[3] / "tests")
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False,
        object_store_memory=100 << 20, runtime_env={"env_vars": {"PYTHONPATH": path}},
    )  # fmt: skip
    yield
    ray.shutdown()


class Trainer:
    def __init__(self, epochs: int) -> None:
        import ringcore as hvd

        hvd.init()
        self.epochs = epochs
        self.rank = hvd.rank()

    def train(self) -> float:
        import ringcore as hvd

        return float(hvd.allreduce(np.full(4, float(self.rank * self.epochs)), op=hvd.Sum)[0])


def fails() -> None:
    raise LookupError("no such row")


def test_a_script_for_horovod_runs_as_it_is() -> None:
    settings = RayExecutor.create_settings(timeout_s=30, placement_group_timeout_s=60)
    executor = RayExecutor(settings, num_workers=2, use_gpu=False)
    executor.start(executable_cls=Trainer, executable_args=[5], extra_env_vars={"SOME_NAME": "x"})
    assert executor.execute(lambda worker: worker.train()) == [5.0, 5.0]
    assert executor.execute_single(lambda worker: worker.rank) == 0
    assert executor.run(os.getenv, args=["SOME_NAME"]) == ["x", "x"]
    assert ray.get(executor.run_remote(os.getenv, args=["RINGCORE_START_TIMEOUT_S"])) == ["30", "30"]
    with pytest.raises(LookupError, match="no such row"):
        executor.run(fails)
    executor.shutdown()


def test_what_horovod_can_and_this_cannot_is_said() -> None:
    with pytest.raises(ValueError, match=r"max_workers, min_workers: elastic jobs on Ray are not there yet"):
        RayExecutor(RayExecutor.create_settings(), min_workers=1, max_workers=4)
    with pytest.raises(ValueError, match="use_gpu is not True"):
        RayExecutor(RayExecutor.create_settings(), num_workers=1, gpus_per_worker=1)
