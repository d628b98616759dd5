"""What scripts for Horovod take from Keras 2: `hvd.init()` gives it to Keras 3, as far as the scripts' lines need it.

An import of the alias changes nothing of Keras, and `hvd.init()` nothing that Keras 3 has itself. On TensorFlow only:
Horovod knows Keras nowhere else. For each there is a line that needs none of it, see the page of this distribution.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import keras


class _Variables(list[Any]):
    """Of an optimizer: an attribute of it, which used to be a method."""

    def __call__(self) -> _Variables:
        return self


def _owner(kind: Any, name: str) -> Any:
    """The class that has an attribute. Keras looks there whether a subclass has one of its own."""
    return next(base for base in kind.__mro__ if name in vars(base))


def _without_old_option(compile_model: Any) -> Any:
    @functools.wraps(compile_model)
    def compile(  # noqa: A001 - Keras' name for it
        self: Any, *arguments: Any, experimental_run_tf_function: bool = False, **options: Any
    ) -> Any:
        del experimental_run_tf_function
        return compile_model(self, *arguments, **options)

    return compile


def _with_short_name(init: Any) -> Any:
    @functools.wraps(init)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807 - it is one
        if "lr" in options:
            options["learning_rate"] = options.pop("lr")
        init(self, *arguments, **options)

    return __init__


def _without_fused(init: Any) -> Any:
    @functools.wraps(init)
    def __init__(self: Any, *arguments: Any, fused: bool | None = None, **options: Any) -> None:  # noqa: N807
        del fused  # a hint for speed
        init(self, *arguments, **options)

    # Layers look at it, and not through the wrapper.
    vars(__init__)["__signature__"] = inspect.signature(init)
    return __init__


def _of_variables_too(function: Any) -> Any:
    @functools.wraps(function)
    def of_tensor(variable: Any, *arguments: Any) -> Any:
        return function(variable.value if isinstance(variable, keras.Variable) else variable, *arguments)

    return of_tensor


def _learning_rate(optimizer: Any) -> Any:
    return optimizer.learning_rate


def _set_learning_rate(optimizer: Any, value: Any) -> None:
    optimizer.learning_rate = value


def install() -> None:
    """Change Keras, once."""
    trainer = _owner(keras.Model, "compile")
    optimizer = _owner(keras.optimizers.Optimizer, "variables")
    if keras.config.backend() != "tensorflow" or hasattr(optimizer, "lr"):
        return
    trainer.compile = _without_old_option(trainer.compile)
    of_keras_3 = optimizer.variables.fget
    optimizer.variables = property(lambda self: _Variables(of_keras_3(self)), doc=optimizer.variables.__doc__)
    optimizer.__init__ = _with_short_name(optimizer.__init__)
    optimizer.lr = property(_learning_rate, _set_learning_rate, doc="The learning rate's name in Keras 2.")
    layer: Any = keras.layers.BatchNormalization
    layer.__init__ = _without_fused(layer.__init__)
    variable: Any = keras.Variable
    variable.ref = lambda self: self.value.ref()
    import tensorflow as tf

    # Both know only variables of TensorFlow, which those of Keras were in Keras 2.
    for name in ("get_value", "set_value"):
        setattr(tf.keras.backend, name, _of_variables_too(getattr(tf.keras.backend, name)))
    # tf.keras has names of Keras 2 for losses, and lacks those that both have.
    for name in set(vars(keras.losses)).difference(vars(tf.keras.losses)):
        setattr(tf.keras.losses, name, getattr(keras.losses, name))
