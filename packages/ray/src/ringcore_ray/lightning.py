"""Lightning on Ray Train: `RingLightningTrainer`, the strategy for it, and `prepare_trainer`."""

from __future__ import annotations

from typing import Any

import ray.train
from ray.train.lightning import RayLightningEnvironment, RayTrainReportCallback
from ray.train.torch import get_device
from ringcore_lightning import strategies_of

from ringcore_ray.torch import RingTorchTrainer

__all__ = [
    "RayLightningEnvironment",
    "RayRingStrategy",
    "RayTrainReportCallback",
    "RingLightningTrainer",
    "prepare_trainer",
]

_Ring: type[Any] = strategies_of("pytorch")[0]


class RingLightningTrainer(RingTorchTrainer):
    """`ray.train.torch.TorchTrainer` for functions that call Lightning, whose workers talk through ringcore.

    Args:
        train_loop_per_worker: Runs on each worker; its Trainer has `strategy=RayRingStrategy()` and
            `plugins=[RayLightningEnvironment()]`, and goes through `prepare_trainer`. Ray's own strategies work too.
        **options: See RingTorchTrainer.
    """


class RayRingStrategy(_Ring):
    """The strategy "ring" of ringcore-lightning on workers of Ray Train.

    Args:
        **options: Of `ringcore_lightning.RingStrategy`: `compression`, `broadcast_buffers`, ...
    """

    @property
    def root_device(self) -> Any:
        """The device that Ray has given this worker."""
        return get_device()

    @root_device.setter
    def root_device(self, device: Any) -> None:
        """Ray decides."""

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        """Which part of the data is this worker's."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}


def prepare_trainer(trainer: Any) -> Any:
    """Check that a Trainer works on Ray's workers; the place of `ray.train.lightning.prepare_trainer`.

    Args:
        trainer: Of Lightning.

    Returns:
        It.

    Raises:
        RuntimeError: Its strategy is neither RayRingStrategy nor one of Ray's, or its environment is not Ray's.
    """
    if not isinstance(trainer.strategy, RayRingStrategy):
        return ray.train.lightning.prepare_trainer(trainer)
    environment = trainer.strategy.cluster_environment
    if not isinstance(environment, RayLightningEnvironment):
        raise RuntimeError(
            f"the Trainer takes its place from {type(environment).__name__}, which does not know Ray's workers: give "
            "it plugins=[RayLightningEnvironment()]"
        )
    return trainer
