"""The optimizer, with Horovod's signature, attributes and warnings."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import ringcore_torch as ring
import torch
from ringcore.adapter import ReduceOp
from ringcore_torch.wrapping import with_methods

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.compression import Compression

__all__ = ["DistributedOptimizer"]


class _DistributedOptimizer(torch.optim.Optimizer):
    """What Horovod's optimizer has besides that of ringcore."""

    _ring: Any
    _synchronized: bool
    _parameter_names: dict[torch.Tensor, str]
    _sparse: set[torch.Tensor]  # whose gradients are sent as dense ones; optimizers like SparseAdam take no others

    def synchronize(self) -> None:
        """Wait until `grad` of every parameter holds the average."""
        super().synchronize()  # type: ignore[misc]
        self._restore_sparse()
        self._synchronized = True

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Wait for the averaged gradients, then step."""
        averaged, self._synchronized = self._synchronized, False
        if not self._ring.should_synchronize:
            return super().step(closure)
        if averaged:
            warnings.warn(
                # Programs match the first part of this text.
                "optimizer.step() called without optimizer.skip_synchronize(): the gradients are averages already, as "
                "synchronize() was called; write `with optimizer.skip_synchronize(): optimizer.step()`",
                stacklevel=2,
            )
        if not self._sparse or closure is not None:
            return super().step(closure)
        self.synchronize()
        with self.skip_synchronize():  # type: ignore[attr-defined]
            return self.step()

    def _restore_sparse(self) -> None:
        for parameter in self._sparse:
            if parameter.grad is not None and not parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_sparse(1)


class _OwnOptimizer(torch.optim.Optimizer):
    """The optimizer of a rank that is not in the process set: it steps with its own gradients, as Horovod's does."""

    def synchronize(self) -> None:
        """Return at once: nobody else has a part in these gradients."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """As on a member; it makes no difference here."""
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """As on a member; it makes no difference here."""


def DistributedOptimizer(  # noqa: N802 - Horovod's name for it
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = ring.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`ringcore_torch.DistributedOptimizer`; `num_groups` is an old name of `groups`, and 0 means no groups.

    A rank that is not in the process set steps with its own gradients.

    Raises:
        ValueError: An argument that does not fit the others.
    """
    if num_groups and groups is None:
        groups = num_groups
    if gradient_predivide_factor != 1.0 and op is not ring.Average:
        raise ValueError("gradient_predivide_factor works with op=Average only")
    named = list(named_parameters) if named_parameters is not None else [
        (f"allreduce.noname.{i}.{j}", parameter)
        for i, group in enumerate(optimizer.param_groups)
        for j, parameter in enumerate(group["params"])
    ]  # fmt: skip
    counts = Counter(name for name, _ in named)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"named_parameters names each parameter once, but {', '.join(twice)} several times")
    if not process_set.included():
        return _with_names(with_methods(optimizer, _OwnOptimizer), named)
    sparse: set[torch.Tensor] = set()
    if sparse_as_dense:
        _note_sparse(optimizer, sparse)  # first: the gradients are dense when ringcore has seen them
    wrapped = ring.DistributedOptimizer(
        optimizer, named, compression=compression, backward_passes_per_step=backward_passes_per_step, op=op,
        gradient_predivide_factor=gradient_predivide_factor, groups=groups or None, sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        check_weights=False,  # Horovod lets scripts broadcast after the first step
    )  # fmt: skip
    if op is not ring.Adasum:
        wrapped = with_methods(wrapped, _DistributedOptimizer)
        wrapped._synchronized = False
        wrapped._sparse = sparse
    return _with_names(wrapped, named)


def _with_names(wrapped: Any, named: list[tuple[str, torch.Tensor]]) -> Any:
    wrapped._parameter_names = {parameter: name for name, parameter in named}
    return wrapped


def _note_sparse(optimizer: torch.optim.Optimizer, found: set[torch.Tensor]) -> None:
    def note(parameter: torch.Tensor) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            found.add(parameter)

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(note)
