"""Gradients of several passes that are reduced over the ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from ringcore import InvalidArgument

from ringcore_tensorflow.gradient_tape import name_of
from ringcore_tensorflow.gradients import Reduction
from ringcore_tensorflow.start import compare_once


class GradientAggregator:
    """Adds gradients up, and reduces the sums over the ranks in every n-th pass.

    ready, gradients = aggregator(tape.gradient(loss, variables), variables)
    if ready:
        optimizer.apply_gradients(zip(gradients, variables))

    It works in eager mode and in a `tf.function`, and is made outside of it; in one, use `tf.cond` or AutoGraph's `if`.

    Args:
        backward_passes_per_step: Passes whose gradients are added up.
        average_aggregated_gradients: Divide the sums by the number of passes.
        options: `op`, `compression`, `gradient_predivide_factor`, `groups`, `process_set`, `name`, as
            `DistributedGradientTape` has them; so `check_weights`, where the sums are reduced.

    Raises:
        InvalidArgument: Less than one pass.
    """

    def __init__(
        self, backward_passes_per_step: int, *, average_aggregated_gradients: bool = True, **options: Any
    ) -> None:
        if backward_passes_per_step < 1:
            raise InvalidArgument(f"backward_passes_per_step is at least 1, not {backward_passes_per_step}")
        self._passes = backward_passes_per_step
        self._divisor = float(backward_passes_per_step) if average_aggregated_gradients else 1.0
        self._reduction = Reduction(
            **{
                "name": "aggregated",
                "who": "GradientAggregator",
                "sparse_as_dense": True,
                "check_weights": True,
                **options,
            }
        )
        self._counter = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._sums: list[Any] = []

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[tf.Tensor, list[Any]]:
        """Add gradients.

        Args:
            gradients: Of this rank: the same ones in every pass; None stays None.
            variables: Whose gradients they are.

        Returns:
            Whether this pass was the last of a step, as a boolean scalar, and the gradients of all ranks if it was;
            otherwise zeros.
        """
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        dense = {i: tf.convert_to_tensor(gradients[i]) for i in present}
        with tf.init_scope():
            if not self._sums:
                self._sums = [
                    tf.Variable(tf.zeros(variables[i].shape, dense[i].dtype), trainable=False) for i in present
                ]
        if len(self._sums) != len(present):
            raise InvalidArgument(f"there are {len(present)} gradients, and {len(self._sums)} in the passes before")
        for total, i in zip(self._sums, present, strict=True):
            total.assign_add(dense[i])
        self._counter.assign_add(1)
        ready = tf.equal(self._counter % self._passes, 0)
        names = [name_of(variables[i], i) for i in present]

        def reduced() -> list[Any]:
            sums = [total / self._divisor for total in self._sums]
            results = self._reduction.apply(sums, names, [variables[i] for i in present])
            if self._reduction.check_weights:
                compare_once([(variables[i], name) for i, name in zip(present, names, strict=True)], self._reduction)
            for total in self._sums:
                total.assign(tf.zeros_like(total))
            return results

        found = tf.cond(ready, reduced, lambda: [tf.zeros_like(total) for total in self._sums])
        results: list[Any] = [None] * len(gradients)
        for i, value in zip(present, found, strict=True):
            results[i] = value
        return ready, results
