"""An optimizer whose ranks step on their own and combine their steps by Adasum."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from ringcore import Adasum, InvalidArgument
from ringcore.adapter import ProcessSet, check_arguments, is_elastic, name_or_next, optimizer_step, reduce_compressed

from ringcore_torch._operations import grouped_allreduce
from ringcore_torch.compression import Compressor
from ringcore_torch.parameters import check_dtypes
from ringcore_torch.wrapping import with_methods


class AdasumOptimizer(torch.optim.Optimizer):
    """The methods of an optimizer that was wrapped with `op=Adasum`, see `DistributedOptimizer`.

    The optimizer steps with the rank's own gradients; what it has changed is combined over the ranks, each parameter by
    itself, and becomes the step of all. Learning rates need no scaling with the number of ranks.
    """

    _named: list[tuple[str, torch.Tensor]]
    _prefix: str
    _process_set: ProcessSet
    _compression: type[Compressor]
    _arguments: Mapping[str, object]
    _compares_arguments: bool

    @optimizer_step()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Step, then combine the steps of all ranks."""
        check_devices(self._named)  # the model may have moved since
        # Once; who joins an elastic job would be alone with it.
        if self._compares_arguments and self._process_set.size() > 1 and not is_elastic():
            name = f"{self._prefix}.arguments"
            check_arguments("DistributedOptimizer", self._arguments, self._process_set, name=name)
        self._compares_arguments = False
        before = [parameter.detach().clone() for _, parameter in self._named]
        loss = super().step(closure)
        own = [parameter.detach() - old for (_, parameter), old in zip(self._named, before, strict=True)]
        combine = partial(grouped_allreduce, name=self._prefix, op=Adasum, process_set=self._process_set)
        deltas = reduce_compressed(self._compression, own, combine)
        with torch.no_grad():
            for (_, parameter), old, delta in zip(self._named, before, deltas, strict=True):
                parameter.copy_(old + delta)
        return loss

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # Asked by `torch.amp.GradScaler.step`. Gradients are the rank's own: one might skip a step that others take.
        raise InvalidArgument("op=Adasum does not work with GradScaler; train in bfloat16, which needs no scaling")

    def synchronize(self) -> None:
        """Gradients are not averaged: nothing to wait for."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Gradients are not averaged: nothing to skip."""
        yield


def check_devices(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Refuse parameters whose steps cannot be combined, before one is made.

    Raises:
        InvalidArgument: A parameter on a GPU.
    """
    for name, parameter in named:
        if parameter.device.type == "cuda":
            raise InvalidArgument(
                f"'{name}' lies on {parameter.device}, and op=Adasum combines steps in host memory; use op=Average, or "
                "keep the model on the CPU"
            )


def wrap(
    optimizer: torch.optim.Optimizer,
    named: list[tuple[str, torch.Tensor]],
    process_set: ProcessSet,
    compression: type[Compressor],
    arguments: Mapping[str, object],
) -> Any:
    """The optimizer as an instance of a subclass of its own class."""
    check_dtypes(named)
    check_devices(named)
    wrapped = with_methods(optimizer, AdasumOptimizer)
    wrapped._named = named
    wrapped._prefix = name_or_next(None, "gradients", process_set)
    wrapped._process_set = process_set
    wrapped._compression = compression
    wrapped._arguments, wrapped._compares_arguments = arguments, True
    return wrapped
