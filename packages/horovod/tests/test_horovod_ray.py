"""A script with Horovod's RayExecutor, on a real Ray."""

from __future__ import annotations

import os
import signal
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
        "local",
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


def train_elastic(folder: str) -> tuple[int, int, float]:
    import ringcore as hvd
    from ringcore import elastic

    hvd.init()

    @elastic.run
    def steps(state: elastic.ObjectState) -> tuple[int, int, float]:
        while state.step < 6 or hvd.size() < 2:
            if (hvd.rank(), state.step) == (1, 3) and not Path(folder, "killed").exists():
                Path(folder, "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            state.total += float(hvd.allreduce(np.ones(3), op=hvd.Average)[0])
            state.step += 1
            state.commit()
        return hvd.rank(), hvd.size(), state.total - state.step

    return steps(elastic.ObjectState(step=0, total=0.0))


def test_an_elastic_job_goes_on_without_a_rank_that_is_killed(tmp_path: Path) -> None:
    settings = RayExecutor.create_settings(placement_group_timeout_s=60)
    executor = RayExecutor(settings, min_workers=2, max_workers=2, cooldown_range=[0.1, 1])
    executor.start()
    assert executor.run(train_elastic, args=[str(tmp_path)]) == [(0, 2, 0.0), (1, 2, 0.0)]
    executor.shutdown()


def test_what_horovod_can_and_this_cannot_is_said() -> None:
    with pytest.raises(ValueError, match=r"has no override_discovery: leave it out"):
        RayExecutor(RayExecutor.create_settings(), min_workers=1, max_workers=4, override_discovery=False)
    with pytest.raises(ValueError, match="use_gpu is not True"):
        RayExecutor(RayExecutor.create_settings(), num_workers=1, gpus_per_worker=1)
