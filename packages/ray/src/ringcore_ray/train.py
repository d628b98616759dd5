"""ringcore as a backend of Ray Train: its workers are the ranks, with the same numbers.

`ringcore_ray.torch`, `.lightning` and `.keras` have a trainer each that does more for its framework.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.train import Result
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from ringcore_ray import process
from ringcore_ray.room import refuse_what_never_fits

# For so long a trainer waits for nodes that are still to join: it has no argument that says how long.
JOINING_S = 15.0


@dataclasses.dataclass
class RingConfig(BackendConfig):
    """Makes the workers of a trainer the ranks of a job: `DataParallelTrainer(fn, backend_config=RingConfig())`.

    Attributes:
        env: Variables for the ranks, `RINGCORE_*` settings among them.
    """

    env: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def backend_cls(self) -> type[Backend]:
        """What Ray Train calls at the start and the end of a group of workers."""
        return _RingBackend

    @property
    def train_func_context(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Runs around the training function on each worker."""
        return leaving

    def to_dict(self) -> dict[str, Any]:
        """What Ray shows of it: names, as values may be secrets."""
        return {"env": sorted(self.env)}


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """A worker that fails lets the others know: they may wait for it, and Ray looks only once in a while."""
    try:
        yield
    except BaseException as error:
        process.leave(error)
        raise


class _RingBackend(Backend):
    # As ring.local_rank() is the index of a rank's device.
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: RingConfig) -> None:
        """Give each worker its place; a group that Ray restarts is another job."""
        nodes = worker_group.execute(process.node_of)
        host = process.meeting_host(nodes)
        tickets = worker_group.execute_single(0, process.open_job, len(nodes), host, backend_config.env)
        seats = [
            worker_group.execute_single_async(rank, process.take_seat, ticket) for rank, ticket in enumerate(tickets)
        ]
        ray.get(seats)

    def on_shutdown(self, worker_group: Any, backend_config: RingConfig) -> None:
        """Let the workers leave."""
        worker_group.execute(process.leave)
        worker_group.execute_single(0, process.close_job)


class RingTrainer(DataParallelTrainer):
    """Ray Train's trainer with `RingConfig`: any framework whose adapter of ringcore the function uses.

    Attributes:
        config: What is taken where no `backend_config` is given.

    Args:
        train_loop_per_worker: Runs on each worker; calls `ring.init()`, and `ray.train.report` as with any trainer.
        backend_config: None: one of the class `config`.
        **options: Of DataParallelTrainer: `train_loop_config`, `scaling_config`, `run_config`, `datasets`, ... Where
            `scaling_config` has a range of workers, Ray starts all anew from the last checkpoint, as many as fit then.
    """

    config: type[RingConfig] = RingConfig

    def __init__(
        self, train_loop_per_worker: Callable[..., Any], *, backend_config: RingConfig | None = None, **options: Any
    ) -> None:
        super().__init__(train_loop_per_worker, backend_config=backend_config or self.config(), **options)

    def fit(self) -> Result:
        """Train, and wait for the end: see `DataParallelTrainer.fit`, which tries again for ever to have what is asked.

        Raises:
            TimeoutError: There can never be room for the workers.
        """
        scaling = self.scaling_config
        if scaling.max_workers:  # Without any, Ray calls the function here.
            if not ray.is_initialized():
                ray.init()  # As Ray Train would.
            need = {"CPU": scaling.num_cpus_per_worker, "GPU": scaling.num_gpus_per_worker}
            refuse_what_never_fits(
                {**need, **scaling.additional_resources_per_worker},
                scaling.min_workers,
                joining_s=JOINING_S,
                apart=scaling.placement_strategy == "STRICT_SPREAD",
            )
        return super().fit()
