"""An optimizer of Keras whose ranks wait for each other no longer than a bound on how old gradients may be.

What a model is compiled with offers gradients, and assigns the newest values to the model's variables. Another
optimizer of the same class, in a thread, steps copies of the variables by the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
from keras import ops
from ringcore import InvalidArgument
from ringcore.adapter import Asynchronous, AsynchronousSteps, ProcessSet, global_process_set, write_arrays

from ringcore_keras.backends import backend
from ringcore_keras.optimizer import is_asynchronous, is_distributed, name_of, public_module
from ringcore_keras.options import Compression
from ringcore_keras.variables import check_same

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_NAMES = ("none", "fp16", "bf16", "int8", "int4")


class _Asynchronous:
    """The methods that a wrapped optimizer gets; see `AsyncOptimizer`."""

    _ring_asynchronous: Asynchronous
    _ring_checks: bool
    _ring_inner: Any
    _ring_newest: list[Any]
    _ring_taken: list[Any]
    _ring_steps: AsynchronousSteps
    _trainable_variables: list[Any]
    _learning_rate: Any
    iterations: Any
    built: bool

    def build(self, variables: Any) -> None:
        """Make the copies of the variables, and what steps them. This one has no variables for them."""
        if self.built:
            return
        variables = list(variables)
        for variable in variables:
            kind = keras.backend.standardize_dtype(variable.dtype)
            if kind not in _FLOATS or getattr(variable, "overwrite_with_gradient", False):
                raise InvalidArgument(
                    f"'{variable.path}' is a variable of {kind}, and AsyncOptimizer steps floats by their gradients; "
                    "use DistributedOptimizer"
                )
        newest = [
            keras.Variable(
                np.zeros(variable.shape), dtype=variable.dtype, name=f"newest_{name_of(variable, i).replace('/', '_')}"
            )
            for i, variable in enumerate(variables)
        ]
        self._ring_inner.build(newest)
        steps = AsynchronousSteps(
            self._ring_asynchronous,
            [(keras.backend.standardize_dtype(variable.dtype), tuple(variable.shape)) for variable in variables],
            count_numbers=lambda: int(self._ring_rate() is not None), check=self._ring_check, begin=self._ring_begin,
            update=self._ring_update, take_newest=self._ring_take_newest,
        )  # fmt: skip
        # Past Keras' own __setattr__, which would take them for variables of the optimizer.
        vars(self).update(_ring_newest=newest, _ring_steps=steps)
        keras.optimizers.Optimizer.build(self, variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Offer this rank's gradients to the next sum, and go on with the newest values."""
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            self.build(trainable_variables)
        variables = self._trainable_variables
        self._ring_check_given(grads, variables if trainable_variables is None else trainable_variables)
        rate = self._ring_rate()
        given = [index for index, gradient in enumerate(grads) if gradient is not None]
        tensors = [ops.convert_to_tensor(grads[index]) for index in given]
        if rate is not None:
            tensors.append(ops.convert_to_tensor(rate))

        def step(*arrays: Any) -> list[Any]:
            numbers = [] if rate is None else [float(arrays[-1])]
            whole: list[Any] = [None] * len(variables)
            for index, array in zip(given, arrays, strict=False):
                whole[index] = array
            touched = [gradient is not None for gradient in whole]
            self._ring_steps.step(numbers, touched, lambda views: write_arrays(views, whole))
            return self._ring_taken

        newest = backend.on_host("AsyncOptimizer", step, tensors, variables)
        for variable, value in zip(variables, newest, strict=True):
            variable.assign(value)
        self.iterations.assign_add(1)

    def synchronize(self) -> None:
        """Wait until all ranks have called this and all gradients are in the weights: the same ones on all ranks.

        Before weights are evaluated or written, and behind the last `fit`.
        """
        self._ring_built().synchronize()
        for variable, value in zip(self._trainable_variables, self._ring_taken, strict=True):
            variable.assign(value)

    @property
    def dropped(self) -> int:
        """How many gradients of this rank were too old to be summed up."""
        return self._ring_steps.dropped if self.built else 0

    @property
    def oldest(self) -> int:
        """How many updates old the oldest gradient of this rank was that was summed up."""
        return self._ring_steps.oldest if self.built else 0

    @property
    def updates(self) -> int:
        """How many sums the weights of this rank have."""
        return self._ring_steps.updates if self.built else 0

    def save_own_variables(self, store: Any) -> None:
        """Nothing: what steps is another optimizer, and goes on while a file is written."""

    def state_dict(self) -> dict[str, Any]:
        """What the optimizer that steps has in its variables; the same on all ranks behind `synchronize()`."""
        with self._ring_built().stepping():
            return {"optimizer": _copies(self._ring_inner.variables)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a `state_dict`, and the weights that the model has now; the optimizer is built.

        All ranks call it, behind `synchronize` or before the first step.
        """
        with self._ring_built().anew():
            for variable, value in zip(self._ring_inner.variables, state["optimizer"], strict=True):
                variable.assign(value)
            if self._ring_rate() is not None:
                self._learning_rate.assign(self._ring_inner._learning_rate)

    def _ring_built(self) -> AsynchronousSteps:
        if not self.built:
            raise InvalidArgument(
                "the AsyncOptimizer has no variables yet; call fit, or optimizer.build(model.trainable_variables)"
            )
        return self._ring_steps

    def _ring_rate(self) -> Any:
        """The learning rate, where it is no schedule: that goes by the sums."""
        return self._learning_rate if hasattr(self._learning_rate, "assign") else None

    def _ring_check_given(self, grads: list[Any], variables: list[Any]) -> None:
        known = [variable.path for variable in self._trainable_variables]
        if [variable.path for variable in variables] != known or len(grads) != len(known):
            raise InvalidArgument(
                f"an AsyncOptimizer was built for {len(known)} variables, '{known[0]}' and others, and is given "
                f"{len(grads)} gradients of other ones; wrap and compile again after variables were frozen or added"
            )

    def _ring_check(self) -> None:
        if self._ring_checks:
            check_same(
                self._trainable_variables, self._ring_asynchronous.process_set, name="asynchronous.weights",
                remedy="pass callbacks=[ring.callbacks.BroadcastGlobalVariablesCallback(0)] to fit",
            )  # fmt: skip

    def _ring_begin(self) -> None:
        values = _copies(self._trainable_variables)

        def begin() -> None:
            for newest, value in zip(self._ring_newest, values, strict=True):
                newest.assign(value)

        _outside_scopes(begin)

    def _ring_update(self, numbers: Sequence[float], gradients: list[Any]) -> None:
        """In the thread that takes part in the sums."""
        for rate in numbers:
            self._ring_inner._learning_rate.assign(rate)
        # Copies: some backends would read the memory itself, in which the next sum is made.
        summed = [None if gradient is None else ops.convert_to_tensor(np.array(gradient)) for gradient in gradients]
        pairs = [pair for pair in zip(summed, self._ring_newest, strict=True) if pair[0] is not None]
        with backend.without_gradients():
            self._ring_inner.apply(*map(list, zip(*pairs, strict=True)))
            for newest, variable in zip(self._ring_newest, self._trainable_variables, strict=True):
                if variable.constraint is not None:
                    newest.assign(variable.constraint(newest.value))

    def _ring_take_newest(self) -> None:
        vars(self)["_ring_taken"] = _outside_scopes(lambda: _copies(self._ring_newest))


def _outside_scopes(function: Callable[[], Any]) -> Any:
    """Call it in a thread of its own: in a step on JAX, what this thread assigns lasts as long as the step."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def _copies(variables: Sequence[Any]) -> list[Any]:
    return [np.array(ops.convert_to_numpy(variable), order="C") for variable in variables]


def AsyncOptimizer(  # noqa: N802 - the field's name for it
    optimizer: Any,
    *,
    staleness: int,
    threshold: int | None = None,
    compression: str = Compression.none,
    process_set: ProcessSet = global_process_set,
    check_weights: bool = True,
) -> Any:
    """Wrap an optimizer: weights are stepped by sums of the gradients of those ranks that have one first.

    A sum is complete with `threshold` gradients, of any ranks, and is their average. A gradient is thrown away when
    more than `staleness` sums have come since the weights that it was made with. Every rank applies every sum, in the
    same order, beside the forward and backward that it is in: a slow one holds nobody up, and after each update all
    ranks have the same bits. (iSwitch: Li et al. 2019.) Ranks may make different numbers of steps. Call
    `optimizer.synchronize()` on all of them before weights are evaluated or written, and behind the last `fit`.

    The result is of the optimizer's own class. Its `learning_rate` is for callbacks: a sum is stepped with that of the
    first rank that contributed; schedules count sums. Clipping is of the averages. Files that Keras writes have no
    state of the optimizer: `state_dict()` has it. There are three more copies of the weights. On JAX compile the model
    with `run_eagerly=True`.

    Args:
        optimizer: Of Keras, or the name of one; it is not built yet.
        staleness: How many updates old a gradient may be, from 0. From 1 on, sums are made while the next gradient is.
        threshold: How many gradients make a sum; None: as many as there are ranks.
        compression: What is sent: `Compression.fp16` or `bf16` halves float32; `int8` and `int4` between hosts.
        process_set: The ranks that train together.
        check_weights: Before the first step, compare the weights of all ranks.

    Raises:
        InvalidArgument: Bounds that are none, an elastic job, an optimizer that is built, or wrapped; a moving average,
            accumulation, loss scaling, or a weight decay that leaves variables out.
    """
    optimizer = keras.optimizers.get(optimizer)
    kind = type(optimizer)
    if is_asynchronous(optimizer) or is_distributed(optimizer) or hasattr(optimizer, "_ring_set"):
        raise InvalidArgument("the optimizer is wrapped already; wrap it once")
    if not isinstance(compression, str) or compression not in _NAMES:
        raise InvalidArgument(f"AsyncOptimizer sends gradients as one of {', '.join(_NAMES)}, not {compression!r}")
    arguments = Asynchronous.checked(staleness, threshold, compression, process_set)
    reasons = {
        "it is built already; wrap it before the model is compiled": getattr(optimizer, "built", False),
        "use_ema keeps averages of the weights": getattr(optimizer, "use_ema", False),
        "gradient_accumulation_steps sums up gradients of several weights": getattr(
            optimizer, "gradient_accumulation_steps", None
        ),
        "exclude_from_weight_decay names variables, and copies of them are stepped": getattr(
            optimizer, "_exclude_from_weight_decay", None
        ),
        "a LossScaleOptimizer leaves steps out, which others take part in": isinstance(
            optimizer, keras.optimizers.LossScaleOptimizer
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise InvalidArgument(
                f"an AsyncOptimizer cannot have this optimizer: {reason}; or use DistributedOptimizer"
            )
    from ringcore_keras import hooks  # which knows what a wrapped optimizer is

    hooks.install()
    members = {"__doc__": kind.__doc__, "__module__": public_module(kind), "from_config": kind.from_config}
    wrapped: Any = object.__new__(type(kind.__name__, (_Asynchronous, kind), members))
    wrapped.__dict__.update(vars(optimizer))
    vars(wrapped).update(
        _ring_asynchronous=arguments, _ring_inner=kind.from_config(optimizer.get_config()), _ring_newest=[],
        _ring_taken=[], _ring_checks=check_weights,
    )  # fmt: skip
    return wrapped
