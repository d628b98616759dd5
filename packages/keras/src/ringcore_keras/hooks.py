"""What the first wrapped optimizer changes in Keras: three methods, for models that have one.

None of it has a place of its own in Keras where it could be said.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import keras
from ringcore.adapter import as_ringcore_error

from ringcore_keras.backends import backend
from ringcore_keras.optimizer import innermost, is_asynchronous, is_distributed
from ringcore_keras.start import with_start


def install() -> None:
    """Change them, once."""
    kinds: Any = keras.optimizers.LossScaleOptimizer, keras.Model
    if not hasattr(kinds[1].fit, "is_ringcore"):
        kinds[0].check_finite = _agreeing(kinds[0].check_finite)
        kinds[1].fit = _with_typed_errors(_with_start(kinds[1].fit))
        kinds[1]._resolve_auto_jit_compile = _without_xla(kinds[1]._resolve_auto_jit_compile)


def _is_wrapped(model: Any) -> bool:
    optimizer = getattr(model, "optimizer", None)
    return is_distributed(optimizer) or is_asynchronous(optimizer)


def _agreeing(of_this_rank: Any) -> Any:
    """All ranks step, or none: with mixed precision Keras leaves out steps whose gradients are not finite.

    `compile` puts optimizers into a LossScaleOptimizer by itself, so that the check can be met nowhere else.
    """

    @functools.wraps(of_this_rank)
    def check_finite(self: Any, grads: Any) -> Any:
        flag = of_this_rank(self, grads)
        if not is_distributed(self):
            return flag
        options = innermost(self).ring_options
        vars(innermost(self))["_ring_reason"] = "a LossScaleOptimizer looks at all gradients"
        return backend.all_true(flag, f"{options.name}.finite", options.process_set)

    return check_finite


def _without_xla(of_keras: Any) -> Any:
    """On TensorFlow `jit_compile="auto"` means False, also where there is a GPU: XLA has no ops of ringcore.

    Not in `compile`: a model with a `compile` of its own is not compiled when Keras loads it.
    """

    @functools.wraps(of_keras)
    def resolve(self: Any) -> bool:
        has_no_ops = keras.config.backend() == "tensorflow" and _is_wrapped(self)
        return False if has_no_ops else bool(of_keras(self))

    return resolve


def _with_start(plain: Any) -> Any:
    """`fit` begins with the same weights on all ranks, or is told that it does not."""
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_distributed(getattr(self, "optimizer", None)):
            return plain(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs)
        given.arguments["callbacks"] = with_start(given.arguments.get("callbacks"), self.optimizer)
        history = plain(*given.args, **given.kwargs)
        innermost(self.optimizer)._ring_settle()  # so that what fails in the last step fails in here
        return history

    return fit


def _with_typed_errors(plain: Any) -> Any:
    """`fit` raises what ringcore raises, on every backend; the backend's exception is its cause."""

    @functools.wraps(plain)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return plain(self, *args, **kwargs)
        except Exception as error:
            typed = as_ringcore_error(error) if _is_wrapped(self) else None
            if typed is None or typed is error:
                raise
            raise typed from error

    fit.is_ringcore = True  # type: ignore[attr-defined]
    return fit
