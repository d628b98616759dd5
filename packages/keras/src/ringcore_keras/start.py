"""What all ranks must have alike when `fit` begins: the weights, and what their optimizers were made with."""

from __future__ import annotations

from typing import Any

import keras
from ringcore import adapter

from ringcore_keras.callbacks import BroadcastGlobalVariablesCallback
from ringcore_keras.optimizer import innermost
from ringcore_keras.variables import check_same, synchronize_state


class CheckWeights(keras.callbacks.Callback):  # type: ignore[misc]
    """Compare the trainable weights of all ranks, once, behind all callbacks that may broadcast them.

    A model without known input shapes has weights only later: they are compared at the end of the first epoch.
    """

    def on_train_begin(self, logs: Any = None) -> None:
        """Compare what is there."""
        self._check()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compare what the first epoch has made."""
        self._check()

    def _check(self) -> None:
        own = vars(innermost(self.model.optimizer))
        if not own["_ring_unchecked"] or not self.model.built or not own["ring_options"].process_set.included():
            return
        own["_ring_unchecked"] = False
        synchronize_state(self.model)
        options, local = own["ring_options"], own["_ring_local"]
        check_same(
            [weight for weight in self.model.trainable_variables if weight.path not in local], options.process_set,
            name=f"{options.name}.weights",
            remedy="pass callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(0)] to fit, or broadcast=True to "
            "DistributedOptimizer", again=own["_ring_has_compared"],
        )  # fmt: skip
        own["_ring_has_compared"] = True


class CheckArguments(keras.callbacks.Callback):  # type: ignore[misc]
    """Compare what the ranks have made their optimizers with, once. Who joins an elastic job would be alone with it."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Compare them."""
        own = vars(innermost(self.model.optimizer))
        options = own["ring_options"]
        if own["_ring_compares"] and not adapter.is_elastic() and options.process_set.included():
            own["_ring_compares"] = False
            if options.process_set.size() > 1:
                adapter.check_arguments(
                    "DistributedOptimizer", options.arguments, options.process_set, name=f"{options.name}.options"
                )


def with_start(callbacks: Any, optimizer: Any) -> Any:
    """What `fit` is to be given for its callbacks.

    Args:
        callbacks: What the user has given: None, one, several, or a CallbackList.
        optimizer: Of the model; it is distributed.

    Returns:
        They, and those that the optimizer asks for.
    """
    options = innermost(optimizer).ring_options
    root = options.process_set.ranks[0]
    before: list[keras.callbacks.Callback] = [CheckArguments()]
    behind: list[keras.callbacks.Callback] = []
    if options.broadcast:
        before.append(BroadcastGlobalVariablesCallback(root, process_set=options.process_set))
    if options.check_weights:
        behind.append(CheckWeights())
    if isinstance(callbacks, keras.callbacks.CallbackList):
        for callback in [*before, *behind]:
            callback.set_model(callbacks.model)
            callbacks.append(callback)
        return callbacks
    given = [] if callbacks is None else list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    return [*before, *given, *behind]
