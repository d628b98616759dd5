"""The strategies of the Trainer."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from ringcore_torch.compression import Compression, Compressor

from ringcore_lightning.environment import environment_for
from ringcore_lightning.registration import strategies_of
from ringcore_lightning.sync_batch_norm import on_cpu
from ringcore_lightning.synchronization import ModuleSynchronization, default_start_method


class RingStrategyMixin:
    """Data-parallel training whose gradients ringcore averages, in place of DistributedDataParallel's.

    The module is not wrapped, parameters may stay without a gradient, and checkpoints are those of "ddp".

    Args:
        accelerator: Lightning's, as `parallel_devices`, `cluster_environment`, `checkpoint_io`, `precision_plugin`.
        compression: What is sent of the gradients: `ringcore_torch.Compression.fp16` or `bf16` halves float32.
        broadcast_buffers: Give all ranks rank 0's buffers (running averages of batch norm) before each training step.
        timeout: Of an operation.
        start_method: How ranks are started, if no launcher did: "popen" (the script again), "spawn", "fork".
    """

    strategy_name = "ring"

    def __init__(
        self,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        *,
        compression: type[Compressor] = Compression.none,
        broadcast_buffers: bool = True,
        timeout: timedelta | None = None,
        start_method: str | None = None,
    ) -> None:
        options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=environment_for(cluster_environment, _environment_class(type(self))),
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            process_group_backend="ring",
            start_method=start_method or default_start_method(),
            **options,
        )
        self._compression = compression
        self._broadcast_buffers = broadcast_buffers
        self._synchronization: ModuleSynchronization | None = None

    def setup(self: Any, trainer: Any) -> None:
        """Convert batch norm to one that works on CPUs, then as "ddp"."""
        self._layer_sync = on_cpu(self._layer_sync)
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

    def __reduce__(self: Any) -> Any:
        return _restored, (self.ddp_module, 0, self.__dict__)

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


class RingDDPStrategyMixin:
    """Lightning's "ddp" over ringcore's backend of torch.distributed. Takes its arguments."""

    strategy_name = "ring_ddp"

    def __init__(self, *args: Any, cluster_environment: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("process_group_backend", "ring")
        cluster_environment = environment_for(cluster_environment, _environment_class(type(self)))
        super().__init__(*args, cluster_environment=cluster_environment, **kwargs)

    def __reduce__(self: Any) -> Any:
        return _restored, (self.ddp_module, 1, self.__dict__)


def _restored(module: str, index: int, state: dict[str, Any]) -> Any:
    """A strategy in a process that was spawned: its class is made there."""
    strategy = strategies_of(module)[index]
    made = object.__new__(strategy)
    made.__dict__.update(state)
    return made


def make_strategies(ddp: type[Any]) -> tuple[type[Any], type[Any]]:
    """The classes of "ring" and "ring_ddp" on top of a package's `DDPStrategy`."""
    names = {"__module__": "ringcore_lightning", "ddp_module": ddp.__module__.rpartition(".")[0]}
    return (
        type("RingStrategy", (RingStrategyMixin, ddp), {**names, "__doc__": RingStrategyMixin.__doc__}),
        type("RingDDPStrategy", (RingDDPStrategyMixin, ddp), {**names, "__doc__": RingDDPStrategyMixin.__doc__}),
    )


def _fabric_of(strategy: type[Any]) -> str:
    """The package of Fabric that a strategy's Lightning is made of."""
    standalone = any(base.__module__.startswith("pytorch_lightning.") for base in strategy.__mro__)
    return "lightning_fabric" if standalone else "lightning.fabric"


def _environment_class(strategy: type[Any]) -> Any:
    return importlib.import_module(f"{_fabric_of(strategy)}.plugins.environments").ClusterEnvironment
