"""What the strategies of the Trainer and of Fabric have in common: how they are made, also where ranks are spawned."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Set
from datetime import timedelta
from typing import Any

from ringcore_torch.compression import Compression, Compressor

from ringcore_lightning.environment import environment_for, ranks_started
from ringcore_lightning.synchronization import default_start_method


class RingDDPStrategyMixin:
    """Lightning's "ddp" over ringcore's backend of torch.distributed. Takes its arguments.

    Where a launcher has started the ranks, a Trainer of one CPU (`devices="auto"`, or none said) takes their number.
    """

    strategy_name = "ring_ddp"
    ddp_module: str  # the package that the strategy belongs to
    # Lightning's:
    parallel_devices: list[Any]
    num_nodes: int

    def __init__(self, *args: Any, cluster_environment: Any = None, **options: Any) -> None:
        options.setdefault("process_group_backend", "ring")
        options["cluster_environment"] = environment_for(cluster_environment, self._environment_base())
        super().__init__(*args, **options)

    def _environment_base(self) -> type[Any]:
        """The package's class of cluster environments."""
        fabric = "lightning.fabric" if self.ddp_module.startswith("lightning.") else "lightning_fabric"
        base: type[Any] = importlib.import_module(f"{fabric}.plugins.environments").ClusterEnvironment
        return base

    def _configure_launcher(self) -> None:
        started = ranks_started()
        if started is not None and self.num_nodes == 1 and [device.type for device in self.parallel_devices] == ["cpu"]:
            # devices="auto" is one CPU to Lightning, whose connector keeps this list too.
            self.parallel_devices.extend(self.parallel_devices * (started[0] - 1))
            self.num_nodes = started[1]
        super()._configure_launcher()  # type: ignore[misc]  # DDPStrategy's

    def __reduce__(self) -> Any:
        return _blank, (self.ddp_module, self.strategy_name), vars(self)


def _blank(module: str, name: str) -> Any:
    """A strategy in a process that was spawned: its class is made there."""
    from ringcore_lightning.registration import strategies_of

    (strategy,) = (strategy for strategy in strategies_of(module) if strategy.strategy_name == name)
    return object.__new__(strategy)


class RingStrategyMixin(RingDDPStrategyMixin):
    """Data-parallel training whose gradients ringcore averages, in place of DistributedDataParallel's.

    The module is not wrapped, parameters may stay without a gradient, and checkpoints are those of "ddp".

    Args:
        compression: What is sent of the gradients: `ringcore_torch.Compression.fp16` or `bf16` halves float32.
        broadcast_buffers: Give all ranks rank 0's buffers (running averages of batch norm) before a pass in training.
        timeout: Of an operation.
        start_method: How ranks are started, if no launcher did: "popen" (the script again), "spawn", "fork".
        options: Lightning's: `accelerator`, `parallel_devices`, `cluster_environment`, `checkpoint_io`, and
            `precision_plugin`, which Fabric calls `precision`.

    Raises:
        TypeError: There is no such option.
    """

    strategy_name = "ring"
    lightning_options: Set[str]

    def __init__(
        self,
        *,
        compression: type[Compressor] | str = Compression.none,
        broadcast_buffers: bool = True,
        timeout: timedelta | None = None,
        start_method: str | None = None,
        **options: Any,
    ) -> None:
        # Lightning's "ddp" keeps what it does not know for DistributedDataParallel, which nobody makes here.
        for name in options.keys() - self.lightning_options:
            own = inspect.signature(RingStrategyMixin).parameters.keys() - {"options"}
            known = ", ".join(sorted(own | self.lightning_options))
            raise TypeError(f"{type(self).__name__} has no option '{name}'; it has {known}")
        if timeout is not None:
            options["timeout"] = timeout
        super().__init__(start_method=start_method or default_start_method(), **options)
        self._compression = Compression.chosen(compression, who=type(self).__name__)
        self._broadcast_buffers = broadcast_buffers


def make_strategies(ddp: type[Any], ring: type[RingStrategyMixin], prefix: str) -> tuple[type[Any], type[Any]]:
    """The classes of "ring" and "ring_ddp" on top of a package's `DDPStrategy`.

    Args:
        ddp: The package's.
        ring: What "ring" does otherwise.
        prefix: Of the classes' names.
    """
    parallel: Any = ddp.__base__  # what "ddp" adds to its options is for DistributedDataParallel
    members = {
        "__module__": "ringcore_lightning", "ddp_module": ddp.__module__.rpartition(".")[0],
        "lightning_options": inspect.signature(parallel).parameters.keys(),
    }  # fmt: skip
    return (
        type(f"{prefix}RingStrategy", (ring, ddp), {**members, "__doc__": RingStrategyMixin.__doc__}),
        type(
            f"{prefix}RingDDPStrategy",
            (RingDDPStrategyMixin, ddp),
            {**members, "__doc__": RingDDPStrategyMixin.__doc__},
        ),
    )
