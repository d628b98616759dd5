"""What the suite needs of a framework: tensors from numpy arrays and back, and the module with the collectives."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Protocol

import numpy as np

# Module of the adapter -> distribution it needs. The suite runs with those that are installed.
ADAPTERS = {
    "numpy": "numpy",
    "torch": "ringcore-torch",
    "torch_distributed": "ringcore-torch",
    "tensorflow": "ringcore-tensorflow",
    "jax": "ringcore-jax",
}
# The same with tensors of another kind; what differs is in the adapter, so that one transport and two ranks do.
VARIANTS = {
    "torch_strided": "ringcore-torch",
    "torch_leaf": "ringcore-torch",
    "tensorflow_function": "ringcore-tensorflow",
    "jax_jit": "ringcore-jax",
}
# Cases that an adapter's framework has nothing for.
LACKS: dict[str, set[str]] = {"torch_distributed": {"join", "join_in_a_process_set"}}


class Adapter(Protocol):
    """One framework."""

    # Has allreduce, allgather, ... by the names and with the keywords that all adapters share; those in place, whose
    # names end in "_", where the framework's tensors can be written.
    collectives: ModuleType
    # Names of numpy's dtypes, and bfloat16.
    dtypes: tuple[str, ...]

    def tensor(self, array: np.ndarray) -> Any:
        """A new tensor with the values of an array (bfloat16: of ml_dtypes)."""

    def array(self, tensor: Any) -> np.ndarray:
        """A tensor's values."""


def load(name: str) -> Adapter:
    """The adapter of a framework, by its name in `ADAPTERS`."""
    adapter: Adapter = importlib.import_module(f"conformance.adapters.{name}_adapter")
    return adapter
