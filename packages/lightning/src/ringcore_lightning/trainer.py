"""The strategy "ring" of the Trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ringcore_lightning import elastic
from ringcore_lightning.elastic import ElasticEnvironment
from ringcore_lightning.strategies import RingStrategyMixin
from ringcore_lightning.sync_batch_norm import layer_sync_for
from ringcore_lightning.synchronization import ModuleSynchronization


class TrainerRingMixin(RingStrategyMixin):
    """The Trainer's "ring".

    Args:
        elastic: Under `ringrun --min-np` ranks that are left go on when one is lost: see `ringcore_lightning.elastic`.
        options: See `RingStrategyMixin`.
    """

    _synchronization: ModuleSynchronization | None = None
    _followed: elastic.Followed | None = None

    def __init__(self, *, elastic: bool = False, **options: Any) -> None:
        self._elastic = elastic
        if elastic:
            options["cluster_environment"] = ElasticEnvironment.of(self._environment_base())
        super().__init__(**options)

    def setup_distributed(self: Any) -> None:
        """As "ddp"; an elastic job has no groups of torch.distributed."""
        self.set_world_ranks() if self._elastic else super().setup_distributed()

    def setup(self: Any, trainer: Any) -> None:
        """Convert batch norm to one that works on the device, then as "ddp"."""
        if self._elastic:
            self._followed = elastic.Followed(trainer)
        self._layer_sync = layer_sync_for(self.root_device, self._layer_sync)
        super().setup(trainer)

    def process_dataloader(self: Any, dataloader: Any) -> Any:
        """In an elastic job, deal out the training data anew whenever a rank is lost."""
        if self._followed is not None and self.lightning_module.trainer.training:
            return elastic.ElasticLoader(dataloader)
        return super().process_dataloader(dataloader)

    @property
    def distributed_sampler_kwargs(self: Any) -> dict[str, Any]:
        """The ranks that there are."""
        if self._elastic:
            return {"num_replicas": self.world_size, "rank": self.global_rank}
        found: dict[str, Any] = super().distributed_sampler_kwargs
        return found

    def barrier(self: Any, *args: Any, **kwargs: Any) -> None:
        """Wait for all ranks."""
        elastic.wait_for_all() if self._elastic else super().barrier(*args, **kwargs)

    def broadcast(self: Any, obj: Any, src: int = 0) -> Any:
        """Give all ranks an object of one."""
        return elastic.broadcast(obj, src) if self._elastic else super().broadcast(obj, src)

    def reduce(self: Any, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce a tensor over all ranks."""
        return elastic.reduce(tensor, reduce_op) if self._elastic else super().reduce(tensor, group, reduce_op)

    def all_gather(self: Any, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """The tensors of all ranks, along a new first dimension."""
        if self._elastic:
            return elastic.gather(tensor)
        gathered: torch.Tensor = super().all_gather(tensor, group, sync_grads)
        return gathered

    def _setup_model(self: Any, model: torch.nn.Module) -> torch.nn.Module:
        self._synchronization = ModuleSynchronization(
            model, self._compression, broadcast_buffers=self._broadcast_buffers
        )
        return model

    def _register_ddp_hooks(self) -> None:
        """There is no DistributedDataParallel; on GPUs Lightning asserts that there is one."""

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Lightning's, with rank 0's buffers."""
        if self._followed is not None:
            self._followed.follow()
        self._synchronization.before_forward(training=True)
        return super().training_step(*args, **kwargs)

    def validation_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Lightning's, with rank 0's buffers while the model is being fitted."""
        if self._synchronization is not None:
            self._synchronization.before_forward(training=False)
        return super().validation_step(*args, **kwargs)

    def backward(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Lightning's; if it fails, nothing of it is averaged later."""
        try:
            loss: torch.Tensor = super().backward(*args, **kwargs)
            return loss
        except BaseException:
            if self._synchronization is not None:
                self._synchronization.abandon()
            raise

    def post_backward(self: Any, closure_loss: torch.Tensor) -> None:
        """Average the gradients."""
        super().post_backward(closure_loss)
        self._synchronization.after_backward()
        if self._followed is not None:
            self._followed.step_is_done()

    @contextlib.contextmanager
    def block_backward_sync(self: Any) -> Iterator[None]:
        """Inside, gradients are only added up."""
        with self._synchronization.no_sync():
            yield

    def teardown(self: Any) -> None:
        """Let go of the module."""
        if self._synchronization is not None:
            self._synchronization.end()
            self._synchronization = self._followed = None
        super().teardown()
