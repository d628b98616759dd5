"""An optimizer whose ranks wait for each other no longer than a bound on how old gradients may be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from ringcore import InvalidArgument, adapter
from ringcore.adapter import Asynchronous, AsynchronousSteps, ProcessSet, global_process_set, write_arrays

from ringcore_tensorflow._graph import as_written
from ringcore_tensorflow.compression import Compression, Compressor
from ringcore_tensorflow.host import on_host


class AsyncOptimizer:
    """Steps variables by an optimizer, by sums of the gradients of those ranks that have one first.

    A sum is complete with `threshold` gradients, of any ranks, and is their average. A gradient is thrown away when
    more than `staleness` sums have come since the variables that it was made with. Every rank applies every sum, in the
    same order, beside whatever it computes: a slow one holds nobody up, and after each update all ranks have the same
    bits. (iSwitch: Li et al. 2019.) In eager mode and in `tf.function`; models of Keras train with
    `ringcore_keras.AsyncOptimizer`.

        optimizer = ring.AsyncOptimizer(tf.keras.optimizers.SGD(0.1), variables, staleness=1)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))  # of a plain tape
        optimizer.synchronize()  # on all ranks, before variables are evaluated or written

    The optimizer is this one's from now on, as a thread steps with it copies of the variables: set the learning rate
    here, in `learning_rate`. A sum is stepped with that of the first rank that contributed; schedules count sums. There
    are three more copies of the variables.

    Args:
        optimizer: What has `apply_gradients`, and has not been used yet.
        variables: `tf.Variable`s of float dtypes, in host memory; the same on every rank, in the same order.
        staleness: How many updates old a gradient may be, from 0. From 1 on, sums are made while the next gradient is.
        threshold: How many gradients make a sum; None: as many as there are ranks.
        compression: What is sent: `Compression.fp16` or `bf16` halves float32; `int8` and `int4` between hosts.
        process_set: The ranks that train together.
        check_weights: Before the first step, compare the variables of all ranks.

    Raises:
        InvalidArgument: Bounds that are none, an elastic job, variables of other dtypes or on a GPU, a compression that
            has to see each gradient of each rank.
    """

    def __init__(
        self,
        optimizer: Any,
        variables: Iterable[tf.Variable],
        *,
        staleness: int,
        threshold: int | None = None,
        compression: type[Compressor] | str = Compression.none,
        process_set: ProcessSet = global_process_set,
        check_weights: bool = True,
    ) -> None:
        compressor = Compression.chosen(compression, who="AsyncOptimizer")
        arguments = Asynchronous.checked(staleness, threshold, Compression.name_of(compressor), process_set)
        self._variables = list(variables)
        _check_variables(self._variables)
        if not hasattr(optimizer, "apply_gradients"):
            raise InvalidArgument(f"AsyncOptimizer wraps what has apply_gradients, not {type(optimizer).__name__}")
        if getattr(optimizer, "built", False):
            raise InvalidArgument("the optimizer has variables for others already; pass one that was not used yet")
        self._inner, self._set, self._checks_weights = optimizer, process_set, check_weights
        self._newest = [tf.Variable(variable, name=variable.name.removesuffix(":0")) for variable in self._variables]
        if hasattr(optimizer, "build"):
            optimizer.build(self._newest)
        rate = _rate_of(optimizer)
        self._rate = None if rate is None else float(rate.numpy())
        self._steps = AsynchronousSteps(
            arguments, [(variable.dtype.name, tuple(variable.shape)) for variable in self._variables],
            count_numbers=lambda: int(self._rate is not None), check=self._check, begin=self._begin,
            update=self._update, take_newest=self._take_newest,
        )  # fmt: skip
        self._taken: list[Any] = []

    @property
    def learning_rate(self) -> float | None:
        """That this rank offers with its gradients; None where the optimizer has a schedule, or tells nothing of it."""
        return self._rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if self._rate is None:
            raise InvalidArgument("the optimizer has a schedule, or no learning rate that can be set; leave it")
        self._rate = float(rate)

    @as_written
    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, tf.Variable]]) -> None:
        """Offer this rank's gradients to the next sum, and go on with the newest variables.

        Waits until at most `staleness` gradients of this rank are in no variables. Rows of embeddings become dense.

        Raises:
            InvalidArgument: Another variable than it was made for; a function that is compiled by XLA.
            MismatchError: In the first step: ranks were given other arguments, or begin with other variables.
            PeerLostError: A rank is lost; so in all calls from now on.
        """
        places = {id(variable): index for index, variable in enumerate(self._variables)}
        gradients: dict[int, Any] = {}
        for gradient, variable in grads_and_vars:
            if id(variable) not in places:
                raise InvalidArgument(f"'{variable.name}' is none of the variables that AsyncOptimizer was made for")
            if gradient is not None:
                gradients[places[id(variable)]] = tf.convert_to_tensor(gradient)

        def step(*arrays: Any) -> list[Any]:
            given = dict(zip(gradients, arrays, strict=True))
            whole = [given.get(index) for index in range(len(self._variables))]
            numbers = [] if self._rate is None else [self._rate]
            touched = [gradient is not None for gradient in whole]
            self._steps.step(numbers, touched, lambda views: write_arrays(views, whole))
            return self._taken

        newest = on_host("AsyncOptimizer", step, list(gradients.values()), self._variables)
        for variable, value in zip(self._variables, newest, strict=True):
            variable.assign(value)

    def synchronize(self) -> None:
        """Wait until all ranks have called this and all gradients are in the variables, the same ones on all ranks.

        Before variables are evaluated or written, and behind the last step; in eager mode.
        """
        self._steps.synchronize()
        for variable, value in zip(self._variables, self._taken, strict=True):
            variable.assign(value)

    @property
    def dropped(self) -> int:
        """How many gradients of this rank were too old to be summed up."""
        return self._steps.dropped

    @property
    def oldest(self) -> int:
        """How many updates old the oldest gradient of this rank was that was summed up."""
        return self._steps.oldest

    @property
    def updates(self) -> int:
        """How many sums the variables of this rank have."""
        return self._steps.updates

    def state_dict(self) -> dict[str, Any]:
        """What the optimizer has in its variables; the same on all ranks behind `synchronize()`."""
        with self._steps.stepping():
            return {"optimizer": _copies(_variables_of(self._inner))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a `state_dict`, and the variables as they are now.

        All ranks call it, behind `synchronize` or before the first step.
        """
        with self._steps.anew():
            for variable, value in zip(_variables_of(self._inner), state_dict["optimizer"], strict=True):
                variable.assign(value)
            rate = _rate_of(self._inner)
            self._rate = None if rate is None else float(rate.numpy())

    def _check(self) -> None:
        if self._checks_weights and self._set.size() > 1:
            held = _copies(self._variables)
            adapter.check_weights(
                [variable.name for variable in self._variables],
                [adapter.hash_of(each.ctypes.data, each.nbytes) for each in held], self._set,
                name="asynchronous.weights",
                remedy="call broadcast_variables(variables, root_rank=0) before the first step",
            )  # fmt: skip

    def _begin(self) -> None:
        for newest, variable in zip(self._newest, self._variables, strict=True):
            newest.assign(variable)

    def _update(self, numbers: Sequence[float], gradients: list[Any]) -> None:
        """In the thread that takes part in the sums."""
        for rate in numbers:
            _rate_of(self._inner).assign(rate)
        # Copies: TensorFlow may read the memory itself, in which the next sum is made.
        pairs = [
            (tf.constant(np.array(gradient)), newest)
            for gradient, newest in zip(gradients, self._newest, strict=True)
            if gradient is not None
        ]
        self._inner.apply_gradients(pairs)

    def _take_newest(self) -> None:
        self._taken = _copies(self._newest)


def _check_variables(variables: Sequence[Any]) -> None:
    for variable in variables:
        if not isinstance(variable, tf.Variable):
            raise InvalidArgument(
                f"AsyncOptimizer steps variables of TensorFlow, not {type(variable).__name__}; use "
                "ringcore_keras.AsyncOptimizer for a model of Keras"
            )
        if not variable.dtype.is_floating:
            raise InvalidArgument(f"'{variable.name}' is of {variable.dtype.name}, and AsyncOptimizer steps floats")
        if "GPU" in (variable.device or ""):
            raise InvalidArgument(
                f"'{variable.name}' lies on a GPU, and AsyncOptimizer steps in host memory; use "
                "DistributedGradientTape there"
            )


def _rate_of(optimizer: Any) -> Any:
    """The variable that an optimizer has its learning rate in, if it has one."""
    rate = getattr(optimizer, "_learning_rate", None)  # what `learning_rate` gives may be the value of a schedule
    return rate if hasattr(rate, "assign") else None


def _variables_of(optimizer: Any) -> list[Any]:
    found = getattr(optimizer, "variables", [])
    return list(found() if callable(found) else found)


def _copies(variables: Sequence[Any]) -> list[Any]:
    return [np.array(variable.numpy(), order="C") for variable in variables]
