"""PyTorch on Ray Train: `RingTorchTrainer` in the place of `ray.train.torch.TorchTrainer`, with the same helpers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

import ray
import ray.train
import ringcore
import torch.distributed as dist
from ray.train.torch import enable_reproducibility, get_device, get_devices, prepare_data_loader, prepare_model
from torch._C._distributed_c10d import TCPStore

from ringcore_ray.train import RingConfig, RingTrainer, leaving

__all__ = [
    "RingTorchConfig",
    "RingTorchTrainer",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
]


@dataclasses.dataclass
class RingTorchConfig(RingConfig):
    """A `RingConfig` whose workers are the default group of torch.distributed too, with the backend "ring"."""

    @property
    def train_func_context(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Runs around the training function on each worker."""
        return _grouped


class RingTorchTrainer(RingTrainer):
    """`ray.train.torch.TorchTrainer` whose workers talk through ringcore. The training function stays as it is.

    `ringcore.init()` has been called for it, and torch.distributed has its default group: `prepare_model` and
    `prepare_data_loader` of Ray work, and so does `ringcore_torch.DistributedOptimizer` with a model that
    `prepare_model(model, parallel_strategy=None)` has only moved.

    Args:
        train_loop_per_worker: Runs on each worker.
        **options: Of TorchTrainer, but `backend_config=RingTorchConfig(env=...)` in the place of `torch_config`.

    Raises:
        ValueError: A `torch_config` is given.
    """

    config = RingTorchConfig

    def __init__(self, train_loop_per_worker: Callable[..., Any], **options: Any) -> None:
        if options.pop("torch_config", None) is not None:
            raise ValueError(
                "torch_config= says how gloo or NCCL meet, and the backend here is ringcore: leave it out, and give "
                'backend_config=RingTorchConfig(env={"RINGCORE_TIMEOUT_S": "600"}) for settings'
            )
        super().__init__(train_loop_per_worker, **options)


@contextlib.contextmanager
def _grouped() -> Iterator[None]:
    with _group_of_torch(), leaving():
        yield


@contextlib.contextmanager
def _group_of_torch() -> Iterator[None]:
    """The default group of torch.distributed, and the variables that torchrun would have set."""
    with leaving():  # The others may wait for one that gets no further than here.
        ringcore.init()
        os.environ.update(_variables_of_torchrun())
        dist.init_process_group("ring", store=_store(), rank=ringcore.rank(), world_size=ringcore.size())
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # After a failure the job has gone, and it is told what failed.
            dist.destroy_process_group()


def _variables_of_torchrun() -> dict[str, str]:
    place = ray.train.get_context()
    found = {
        "RANK": place.get_world_rank(),
        "WORLD_SIZE": place.get_world_size(),
        "LOCAL_RANK": place.get_local_rank(),
        "LOCAL_WORLD_SIZE": place.get_local_world_size(),
        "NODE_RANK": place.get_node_rank(),
    }
    return {name: str(value) for name, value in found.items()}


def _store() -> Any:
    """Where torch.distributed keeps what its groups agree upon: at rank 0."""
    host = "127.0.0.1" if ringcore.local_size() == ringcore.size() else ray.util.get_node_ip_address()
    own = TCPStore(host, 0, is_master=True, wait_for_workers=False) if ringcore.rank() == 0 else None
    place = ringcore.broadcast_object((host, own.port) if own is not None else None, root_rank=0)
    return own or TCPStore(*place)
