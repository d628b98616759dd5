"""Variables of Keras that begin alike on all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import ringcore
from ringcore import adapter
from ringcore.adapter import ProcessSet, global_process_set


def broadcast_variables(
    variables: Iterable[Any], root_rank: int = 0, *, process_set: ProcessSet = global_process_set
) -> None:
    """Give every rank's variables the root's values.

    Args:
        variables: Of Keras; on every rank the same ones in the same order.
        root_rank: Rank whose values win.
        process_set: The ranks that take part.

    Raises:
        MismatchError: Ranks have different variables. On every rank.
    """
    kept = list(variables)
    values = [_bytes_of(variable) for variable in kept]
    for i, (variable, value) in enumerate(zip(kept, values, strict=True)):
        # Without the numbers that Keras gives to models and layers: a rank may have made more of them than others.
        path = re.sub("_[0-9]+", "", getattr(variable, "path", variable.name))
        name = f"broadcast_variables.{i}.{path}"
        root = ringcore.broadcast(value.view(_wire_dtype(value)), root_rank, name=name, process_set=process_set)
        variable.assign(root.view(value.dtype).reshape(value.shape))


def _bytes_of(variable: Any) -> Any:
    # A copy: on some backends the array shows the variable's own memory.
    return np.array(keras.ops.convert_to_numpy(variable), order="C")


def _wire_dtype(value: Any) -> Any:
    """Values that are only moved, such as the uint32 of random seeds: as an integer of the same size."""
    return {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.int64}[value.dtype.itemsize]


def check_same(
    variables: Iterable[Any], process_set: ProcessSet, *, name: str, remedy: str, again: bool = False
) -> None:
    """Compare the values of variables over the ranks.

    Args:
        variables: Of Keras; on every rank the same ones in the same order.
        process_set: The ranks that are to have the same.
        name: Identifies the call on all ranks.
        remedy: What gives them the same.
        again: See `adapter.check_weights`.

    Raises:
        MismatchError: Values differ. On every rank.
    """
    kept = list(variables)
    held = [np.ascontiguousarray(keras.ops.convert_to_numpy(variable)) for variable in kept]
    if process_set.size() == 1 or not held:
        return
    hashes = [adapter.hash_of(each.ctypes.data, each.nbytes) for each in held]
    adapter.check_weights(
        [variable.path for variable in kept], hashes, process_set, name=name, remedy=remedy, again=again
    )


def broadcast_global_variables(model: Any, root_rank: int = 0) -> None:
    """Give every rank's model, and its optimizer, the root's values.

    Args:
        model: Built; on every rank the same.
        root_rank: Rank whose values win.
    """
    optimizer = getattr(model, "optimizer", None)
    broadcast_variables([*model.weights, *(optimizer.variables if optimizer is not None else ())], root_rank)


def synchronize_state(model: Any) -> None:
    """On JAX, `fit` keeps variables outside of the model: bring them back, so that they can be read and assigned."""
    bring_back = getattr(model, "jax_state_sync", None)
    if bring_back is not None:
        bring_back()
