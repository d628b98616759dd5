"""Models that were saved with a wrapped optimizer, or without one."""

from __future__ import annotations

from typing import Any

import keras

from ringcore_keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any, custom_optimizers: Any = None, custom_objects: dict[str, Any] | None = None, **options: Any
) -> Any:
    """`keras.saving.load_model`, whose optimizer is wrapped again.

    Args:
        filepath: A `.keras` file that was saved with or without ringcore.
        custom_optimizers: Classes of optimizers that are not Keras' own.
        custom_objects: Names and classes of whatever else is not Keras' own.
        options: Of `DistributedOptimizer`.

    Returns:
        The model; `optimizer` is a DistributedOptimizer with the state of the saved one.
    """
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.saving.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, **options)
    return model
