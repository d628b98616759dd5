"""What differs between Keras' backends: one file each, chosen when ringcore_keras is imported.

The functions take the backend's tensors, and work inside of what the backend compiles.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras
from ringcore import InvalidArgument
from ringcore.adapter import ProcessSet

from ringcore_keras.options import Options


class Backend(Protocol):
    """One of Keras' backends."""

    def reduce_gradients(self, gradients: Sequence[Any], names: Sequence[str], options: Options) -> list[Any]:
        """The gradients of all ranks; none of them is None."""

    def divided(self, gradient: Any, divisor: float) -> Any:
        """A gradient that stays a rank's own, as a part of an average."""

    def allreduce_sum(self, tensor: Any, name: str, process_set: ProcessSet) -> Any:
        """The sum over the ranks of a process set, with a gradient."""

    def reducescatter(self, row: Any, name: str, process_set: ProcessSet) -> Any:
        """This rank's share of the average of all ranks' rows."""

    def allgather(self, share: Any, name: str, process_set: ProcessSet) -> Any:
        """All ranks' shares, in a row."""

    def all_true(self, flag: Any, name: str, process_set: ProcessSet) -> Any:
        """Whether a boolean scalar is true on all ranks."""

    def on_host(
        self, who: str, function: Callable[..., list[Any]], tensors: Sequence[Any], like: Sequence[Any], /
    ) -> list[Any]:
        """What Python makes of tensors: arrays of the dtypes and shapes of some variables, as tensors."""

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Nothing is recorded in here."""


def _load() -> Backend:
    name = keras.config.backend()
    if name not in ("tensorflow", "jax", "torch"):
        raise InvalidArgument(
            f"ringcore_keras works with Keras' backends tensorflow, jax and torch, not with {name}; set KERAS_BACKEND"
        )
    try:
        backend: Backend = importlib.import_module(f"ringcore_keras.backends.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"ringcore_{name}":
            raise
        raise ImportError(
            f"Keras runs on {name}, and ringcore-{name} is not installed. Remedy: pip install ringcore-{name}"
        ) from error
    return backend


backend = _load()
