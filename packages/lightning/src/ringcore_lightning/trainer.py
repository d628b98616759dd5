"""The strategy "ring" of the Trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ringcore_lightning.strategies import RingStrategyMixin
from ringcore_lightning.sync_batch_norm import layer_sync_for
from ringcore_lightning.synchronization import ModuleSynchronization


class TrainerRingMixin(RingStrategyMixin):
    """The Trainer's "ring"."""

    _synchronization: ModuleSynchronization | None = None

    def setup(self: Any, trainer: Any) -> None:
        """Convert batch norm to one that works on the device, then as "ddp"."""
        self._layer_sync = layer_sync_for(self.root_device, self._layer_sync)
        super().setup(trainer)

    def _setup_model(self: Any, model: torch.nn.Module) -> torch.nn.Module:
        self._synchronization = ModuleSynchronization(
            model, self._compression, broadcast_buffers=self._broadcast_buffers
        )
        return model

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Lightning's, with rank 0's buffers."""
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

    @contextlib.contextmanager
    def block_backward_sync(self: Any) -> Iterator[None]:
        """Inside, gradients are only added up."""
        with self._synchronization.no_sync():
            yield

    def teardown(self: Any) -> None:
        """Let go of the module."""
        if self._synchronization is not None:
            self._synchronization.end()
            self._synchronization = None
        super().teardown()
