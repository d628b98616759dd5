"""Optimizers of Keras whose gradients are those of all ranks."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import keras
from ringcore import Average, InvalidArgument, RingcoreError, adapter
from ringcore.adapter import Exchange, ProcessSet, ReduceOp, global_process_set

from ringcore_keras.backends import backend
from ringcore_keras.options import Compression, Options

if TYPE_CHECKING:
    from ringcore_keras.overlap import ForwardOverlap

_log = logging.getLogger("ringcore")

# In the paths of what an optimizer keeps for this rank's share alone; see sharded.py.
SHARE = "ring_share"


class _Distributed:
    """The methods that a wrapped optimizer gets; see `DistributedOptimizer`."""

    ring_options: Options
    _ring_local: frozenset[str]
    _ring_scale_local: bool
    _ring_variables: list[Any]
    _ring_reduced: bool
    _ring_averaged: bool  # what is applied has been averaged
    _ring_reason: str  # why this step needs all gradients
    _ring_overlap: ForwardOverlap | None
    gradient_accumulation_steps: int | None
    iterations: Any

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduce the gradients over all ranks, then step."""
        self._ring_settle()
        grads = list(grads)
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)  # type: ignore[attr-defined]
        if self._ring_overlap is not None and self._ring_overlap.defers(grads, variables):
            return self._ring_defer(self._ring_overlap, grads, variables)
        # Keras passes these on. Past its own __setattr__, which would take them for variables of the optimizer.
        vars(self)["_ring_variables"] = [
            variable
            for gradient, variable in zip(grads, variables, strict=False)
            if gradient is not None and not getattr(variable, "overwrite_with_gradient", False)
        ]
        vars(self)["_ring_reduced"] = False
        result = super().apply(grads, trainable_variables)  # type: ignore[misc]
        if self._ring_variables and not self._ring_reduced and not self.gradient_accumulation_steps:
            raise RingcoreError(
                f"Keras {keras.__version__} has used gradients that ringcore did not see. Remedy: another version of "
                "Keras; and please report it"
            )
        return result

    def _ring_defer(self, overlap: ForwardOverlap, gradients: list[Any], variables: list[Any]) -> None:
        """Send the gradients, and count the step; it is made when its variables are read."""
        local = {i for i, variable in enumerate(variables) if variable.path in self._ring_local}
        shared = [i for i in range(len(variables)) if i not in local]
        names = [name_of(variables[i], i) for i in shared]
        overlap.defer([gradients[i] for i in shared], [variables[i] for i in shared], names)
        if local:  # nobody waits for anything
            self._ring_step([self._ring_own(gradients[i]) for i in local], [variables[i] for i in local])
        else:
            self.iterations.assign_add(1)

    def _ring_step(self, averages: list[Any], variables: list[Any]) -> None:
        """Keras' own step of some variables, by gradients that have been averaged."""
        vars(self)["_ring_averaged"] = True
        try:
            super().apply(averages, variables)  # type: ignore[misc]
        finally:
            vars(self)["_ring_averaged"] = False

    def _ring_settle(self) -> None:
        """Make the steps that wait for a variable to be read, but for the one that is being made."""
        if self._ring_overlap is not None and not self._ring_averaged:
            self._ring_overlap.settle()

    def __setattr__(self, name: str, value: Any) -> None:
        if vars(self).get("_ring_overlap") is not None:  # a step is made with the settings that it was called with
            self._ring_settle()
        super().__setattr__(name, value)

    @property
    def variables(self) -> Any:
        """The optimizer's own, when all steps are made."""
        self._ring_settle()
        return super().variables  # type: ignore[misc]

    def set_weights(self, weights: Any) -> Any:
        """Assign the optimizer's own variables."""
        self._ring_settle()
        return super().set_weights(weights)  # type: ignore[misc]

    def _apply_weight_decay(self, variables: Any) -> None:
        # On PyTorch Keras makes an error of a list of which nothing decays, as one bucket may be.
        if self._ring_overlap is None or any(map(self._use_weight_decay, variables)):  # type: ignore[attr-defined]
            super()._apply_weight_decay(variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Any) -> Any:
        """Where Keras is about to use gradients: after they were accumulated, before they are clipped."""
        if self._ring_averaged:
            return super()._clip_gradients(grads)  # type: ignore[misc]
        vars(self)["_ring_reduced"] = True
        return super()._clip_gradients(self._ring_reduce(list(grads)))  # type: ignore[misc]

    def __reduce__(self) -> Any:
        self._ring_settle()
        plain: Any = object.__new__(type(self).__mro__[2])
        own = ("ring_", "_ring_")
        plain.__dict__.update({key: value for key, value in vars(self).items() if not key.startswith(own)})
        return _wrap, (plain, self.ring_options, self._ring_local, self._ring_scale_local)

    def _ring_on_init(self) -> None:
        """The ranks may be others, and have their own weights."""
        vars(self)["_ring_unchecked"] = self.ring_options.check_weights

    def _ring_reduce(self, gradients: list[Any]) -> list[Any]:
        variables = self._ring_variables
        if len(variables) != len(gradients):
            raise InvalidArgument(
                f"the optimizer was given {len(gradients)} gradients for {len(variables)} variables; wrap the "
                "optimizer itself, not one that changes its gradients"
            )
        results = list(gradients)
        shared = [i for i, variable in enumerate(variables) if variable.path not in self._ring_local]
        if shared and isinstance(self.ring_options.compression, Exchange):
            self.ring_options.compression.claim({name_of(variables[i], i): variables[i] for i in shared})
        if shared:
            theirs = [gradients[i] for i in shared]
            names = [name_of(variables[i], i) for i in shared]
            if self._ring_overlap is not None:
                reduced = self._ring_overlap.reduce(theirs, [variables[i] for i in shared], names)
            else:
                reduced = backend.reduce_gradients(theirs, names, self.ring_options)
            for i, gradient in zip(shared, reduced, strict=True):
                results[i] = gradient
        for i in set(range(len(results))) - set(shared):
            results[i] = self._ring_own(results[i])
        passes = self.gradient_accumulation_steps or 1
        if self.ring_options.average_aggregated_gradients or passes == 1:
            return results
        return [backend.divided(result, 1.0 / passes) for result in results]

    def _ring_own(self, gradient: Any) -> Any:
        """Of a variable that stays this rank's own."""
        if self._ring_scale_local and self.ring_options.op is Average:
            # What the ranks share is averaged: so that both kinds learn at one rate, local ones are divided as well.
            return backend.divided(gradient, self.ring_options.process_set.size())
        return gradient


def name_of(variable: Any, index: int) -> str:
    """Without the numbers that Keras gives to models and layers: a rank may have made more of them than others."""
    return f"{index}.{re.sub(r'_[0-9]+', '', variable.path)}"


def public_module(kind: type) -> str:
    """Where Keras looks for the class when it loads a model; so a file loads without ringcore as well."""
    public = getattr(keras.optimizers, kind.__name__, None)
    is_keras = isinstance(public, type) and issubclass(kind, public) and kind.__module__.startswith("keras.")
    return "keras.optimizers" if is_keras else kind.__module__


def _wrap(optimizer: Any, options: Options, local: frozenset[str], scale_local: bool) -> Any:
    from ringcore_keras import hooks  # which knows what a wrapped optimizer is

    hooks.install()  # Here, and not where a script imports or initialises: no other model needs it.
    kind = type(optimizer)
    members = {
        "__doc__": kind.__doc__,
        "__module__": public_module(kind),
        # Of the optimizer alone, as what is saved is.
        "from_config": kind.from_config,
    }
    wrapped: Any = object.__new__(type(kind.__name__, (_Distributed, kind), members))
    # Variables, schedule and settings stay the same objects.
    wrapped.__dict__.update(vars(optimizer))
    vars(wrapped).update(
        ring_options=options, _ring_local=local, _ring_scale_local=scale_local, _ring_variables=[], _ring_reduced=False,
        _ring_unchecked=options.check_weights, _ring_has_compared=False, _ring_compares=True, _ring_averaged=False,
        _ring_reason="", _ring_overlap=None,
    )  # fmt: skip
    if options.overlap == "forward":
        vars(wrapped)["_ring_overlap"] = _overlap_of(wrapped, options)
    adapter.after_init(wrapped._ring_on_init)
    return wrapped


def _overlap_of(wrapped: Any, options: Options) -> ForwardOverlap | None:
    from ringcore_keras import overlap  # which needs PyTorch

    if reason := overlap.why_never(wrapped):
        _log.warning('overlap="forward" is off: %s', reason)
        return None
    return overlap.ForwardOverlap(wrapped, options)


def DistributedOptimizer(  # noqa: N802 - the field's name for it
    optimizer: Any,
    *,
    name: str = "gradients",
    op: ReduceOp = Average,
    compression: str | Exchange = Compression.none,
    backward_passes_per_step: int = 1,
    gradient_predivide_factor: float = 1.0,
    groups: int | None = None,
    sparse_as_dense: bool = False,
    average_aggregated_gradients: bool = True,
    process_set: ProcessSet = global_process_set,
    check_weights: bool = True,
    broadcast: bool = False,
    error_feedback: bool = False,
    overlap: Literal["backward", "forward"] = "backward",
) -> Any:
    """Wrap an optimizer: before it steps, gradients are averaged over all ranks.

    The result is of the optimizer's own class (a subclass of it) and has its variables, learning rate and settings. It
    is saved as that class: the file loads with and without ringcore; see `load_model`.

    Args:
        optimizer: Of Keras, or the name of one.
        name: Of the operations; two models that are trained at once in two threads need two names.
        op: `Average` or `Sum` of the gradients.
        compression: `Compression.fp16` or `Compression.bf16` halves what is sent of float32 gradients; `int8` and
            `int4` send a quarter and an eighth between hosts; `powersgd(rank)`, `topk(ratio)`, `onebit()`,
            `blocks(size)` and `error_feedback(kind)` average all gradients themselves, when backward is done, in host
            memory, and keep what is lost: in their own `state_dict()`.
        backward_passes_per_step: Batches whose gradients are averaged before they are averaged over the ranks and
            applied: Keras' `gradient_accumulation_steps`, which may be set there as well.
        gradient_predivide_factor: Divide by this before the sum and multiply by it afterwards.
        groups: How many operations the gradients are dealt out to; None: by size. On TensorFlow, and with
            `overlap="forward"`.
        sparse_as_dense: Reduce the gradients of embeddings as dense ones: quicker where most rows have one. On
            TensorFlow; elsewhere they are dense.
        average_aggregated_gradients: Of several passes; False: add their gradients up.
        process_set: The ranks that train together.
        check_weights: When the first `fit` begins, compare a hash of the trainable weights of all ranks, and raise
            `MismatchError` where they differ: the broadcast was forgotten.
        broadcast: Give all ranks the weights and the optimizer's state of the first rank whenever `fit` begins.
        error_feedback: With a compression: keep what is lost of each gradient of this rank, and add it to the next one.
            `ring_options.compression.state_dict()` of the result has it.
        overlap: What communication runs beside: "backward", as far as the backend hands gradients over before it has
            ended. On PyTorch Keras hands them over together, when backward is done. With "forward", on PyTorch alone,
            the next forward: `apply` returns when the gradients are on their way, what the next forward needs first
            comes first, and whatever reads a variable waits until it has been stepped. The results are the same. A step
            that needs all gradients (`global_clipnorm`, a LossScaleOptimizer, `use_ema`, several passes) is as without,
            and so is every step on GPUs and in elastic jobs: a warning says so once.

    Raises:
        InvalidArgument: No optimizer of Keras, one that is wrapped already, another `op` or `overlap`, `error_feedback`
            without a compression; `overlap="forward"` on TensorFlow or JAX, or with a compression that averages all
            gradients itself.
    """
    return _distribute(
        optimizer, frozenset(), False, backward_passes_per_step,
        Options(
            name=name, op=op, compression=compression,
            gradient_predivide_factor=gradient_predivide_factor, groups=groups, sparse_as_dense=sparse_as_dense,
            average_aggregated_gradients=average_aggregated_gradients, process_set=process_set,
            check_weights=check_weights, broadcast=broadcast, error_feedback=error_feedback,
            overlap=overlap,
        ),
    )  # fmt: skip


def PartialDistributedOptimizer(  # noqa: N802 - the field's name for it
    optimizer: Any, *, local_layers: Any = None, scale_local_gradients: bool = True, **options: Any
) -> Any:
    """`DistributedOptimizer`, but the variables of some layers stay this rank's own.

    Args:
        optimizer: Of Keras, or the name of one.
        local_layers: A layer, or several of them; they are built.
        scale_local_gradients: Divide their gradients by the number of ranks.
        options: Of `DistributedOptimizer`.

    Raises:
        InvalidArgument: A layer has no variables yet, or is none.
    """
    layers = (
        [] if local_layers is None else list(local_layers) if isinstance(local_layers, Iterable) else [local_layers]
    )
    local: set[str] = set()
    for layer in layers:
        if not isinstance(layer, keras.Layer):
            raise InvalidArgument(f"local_layers takes layers of Keras, not {type(layer).__name__}")
        if not layer.built:
            raise InvalidArgument(f"the layer '{layer.name}' has no variables yet; build the model first")
        local.update(variable.path for variable in layer.trainable_variables)
    wrapped = DistributedOptimizer(optimizer, **options)
    inner = innermost(wrapped)
    vars(inner).update(_ring_local=frozenset(local), _ring_scale_local=scale_local_gradients)
    return wrapped


def innermost(optimizer: Any) -> Any:
    """The optimizer inside of LossScaleOptimizers."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def _distribute(optimizer: Any, local: frozenset[str], scale_local: bool, passes: int, options: Options) -> Any:
    optimizer = keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidArgument(f"an optimizer of Keras is needed, not {type(optimizer).__name__}")
    if is_distributed(optimizer) or is_asynchronous(optimizer):
        what = "a DistributedOptimizer" if is_distributed(optimizer) else "an AsyncOptimizer"
        raise InvalidArgument(f"the optimizer is {what} already; wrap it once")
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.inner_optimizer = _distribute(optimizer.inner_optimizer, local, scale_local, passes, options)
        return optimizer
    if passes < 1:
        raise InvalidArgument(f"backward_passes_per_step is at least 1, not {passes}")
    if passes > 1:
        if optimizer.built:
            raise InvalidArgument(
                "backward_passes_per_step needs variables that the optimizer, which is built already, lacks; create it "
                f"with gradient_accumulation_steps={passes}"
            )
        optimizer.gradient_accumulation_steps = passes
    return _wrap(optimizer, options, local, scale_local)


def shared_variables(model: Any) -> list[Any]:
    """The weights of a model and the variables of its optimizer, but for those that are or stay a rank's own."""
    optimizer = getattr(model, "optimizer", None)
    local = getattr(innermost(optimizer), "_ring_local", ())
    # Keras names an optimizer's variable after the one that it belongs to.
    marks = tuple(path.replace("/", "_") for path in local)
    slots = optimizer.variables if optimizer is not None else ()
    return [
        *(weight for weight in model.weights if weight.path not in local),
        *(slot for slot in slots if not any(mark in slot.path for mark in (*marks, SHARE))),
    ]


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer was wrapped, possibly inside a LossScaleOptimizer."""
    return isinstance(innermost(optimizer), _Distributed)


def is_asynchronous(optimizer: Any) -> bool:
    """Whether an optimizer was wrapped by `AsyncOptimizer`, possibly inside a LossScaleOptimizer."""
    return hasattr(innermost(optimizer), "_ring_asynchronous")
