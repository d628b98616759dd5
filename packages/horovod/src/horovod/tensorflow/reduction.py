"""How gradients become those of a process set: its members share theirs, other ranks keep their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from ringcore_tensorflow.gradient_tape import Tape, reduce_gradients
from ringcore_tensorflow.gradients import Reduction


class MembersReduction(Reduction):
    """A reduction that ranks go past which are not in the process set."""

    def apply(self, gradients: Sequence[Any], names: Sequence[str], sources: Sequence[Any] = ()) -> list[Any]:
        """The gradients of the members; of another rank its own."""
        return super().apply(gradients, names, sources) if self.process_set.included() else list(gradients)


class DistributedTape(Tape):
    """Horovod's tape."""

    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False, **options: Any
    ) -> Any:
        """The gradients of all ranks; names of operations are ringcore's."""
        del use_generic_names
        return super().gradient(target, sources, output_gradients, **options)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """Pairs of a source and its gradient: of those that stay this rank's, and of the others."""
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients, use_generic_names), strict=True))
        local = [pair for pair in pairs if id(pair[0]) in self._local]
        return local, [pair for pair in pairs if id(pair[0]) not in self._local]


class SessionOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer of TensorFlow 1 whose gradients are those of all ranks.

    Args:
        optimizer: The one that steps.
        name: Of this one.
        use_locking: See `tf.compat.v1.train.Optimizer`.
        reduction: How gradients become those of all ranks.
        scale_local_gradients: Divide the gradients of local variables by the number of ranks.
    """

    def __init__(
        self, optimizer: Any, name: str | None, use_locking: bool, reduction: Reduction, scale_local_gradients: bool
    ) -> None:
        super().__init__(use_locking, name or f"Distributed{type(optimizer).__name__}")
        self._optimizer = optimizer
        self._reduction = reduction
        self._scale_local_gradients = scale_local_gradients
        self._local: set[int] = set()

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of a variable to this rank."""
        self._local.add(id(var))

    def compute_gradients(self, *arguments: Any, **options: Any) -> list[tuple[Any, Any]]:
        """The gradients of all ranks, with their variables."""
        gradients, variables = zip(*self._optimizer.compute_gradients(*arguments, **options), strict=True)
        reduced = reduce_gradients(
            list(gradients), variables, self._reduction, self._local, self._scale_local_gradients
        )
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(self, *arguments: Any, **options: Any) -> Any:
        """Step, with gradients that are reduced already."""
        return self._optimizer.apply_gradients(*arguments, **options)

    def get_slot(self, *arguments: Any, **options: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot(*arguments, **options)

    def get_slot_names(self, *arguments: Any, **options: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot_names(*arguments, **options)

    def variables(self, *arguments: Any, **options: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.variables(*arguments, **options)
