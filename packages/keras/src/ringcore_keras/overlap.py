"""`overlap="forward"` on PyTorch: `apply` returns at once, and variables are stepped when they are read again.

A variable of Keras is a parameter of torch there, so that whoever reads one waits as in ringcore_torch (deferred.py and
pending.py there). A layer waits for its own variables before its forward. The arithmetic is the optimizer's own
`apply`, called for the variables of one bucket, with the count of steps and the learning rate that it had when it was
called for all of them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import torch
from keras.src.backend.common import global_state
from ringcore import RingcoreError, adapter
from ringcore_torch import Compression
from ringcore_torch.averages import Averages
from ringcore_torch.buckets import SOONER_BUCKET_BYTES, deal
from ringcore_torch.deferred import DeferredUpdates
from ringcore_torch.pending import PendingParameter, Update, why_not_hidden
from ringcore_torch.waiting import why_not_now

from ringcore_keras.options import Options

# What they do to a variable depends on that variable, its gradient and its own state alone, and on counts of steps.
_BY_VARIABLE = (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion", "Muon", "RMSprop", "SGD",
)  # fmt: skip
# What Keras keeps of where it is, in each thread: in a layer of mixed precision variables are read as casts, and in a
# stateless or symbolic call there are others in their place.
_SCOPES = ("autocast_scope", "stateless_scope", "torch_device")


class Bucket:
    """Variables that are stepped together.

    Attributes:
        variables: Of Keras.
        names: Theirs, for the operation.
        parameters, held, priority: See `ringcore_torch.pending.Held`.
    """

    def __init__(self, indices: list[int], variables: Sequence[Any], names: Sequence[str]) -> None:
        self.indices = indices
        self.variables = [variables[index] for index in indices]
        self.names = [names[index] for index in indices]
        self.parameters: list[torch.Tensor] = [variable.value for variable in self.variables]
        self.held = False
        self.priority = 0
        self.averages: Averages | None = None  # while they are wanted

    def send(self, gradients: Sequence[torch.Tensor], options: Options, *, is_lasting: bool) -> None:
        """Begin to average; `is_lasting`: the caller goes on, and may change those that it holds itself."""
        own = [gradients[index] for index in self.indices]
        if is_lasting:
            own = [
                gradient if gradient is parameter.grad else gradient.clone()
                for gradient, parameter in zip(own, self.parameters, strict=True)
            ]
        compression: Any = getattr(Compression, str(options.compression))
        title = self.names[0] if len(self.names) == 1 else f"{self.names[0]}..{self.names[-1]}"
        with torch.no_grad():
            self.averages = Averages(
                [gradient.detach() for gradient in own], compression, name=f"{options.name}.{title}", op=options.op,
                prescale_factor=1.0 / options.gradient_predivide_factor,
                postscale_factor=options.gradient_predivide_factor, process_set=options.process_set,
                priority=self.priority, in_place=not compression.quantised,
            )  # fmt: skip

    def wait(self) -> list[torch.Tensor]:
        """Wait for the averages."""
        return self.averages.wait() if self.averages is not None else []


class ForwardOverlap(DeferredUpdates[Bucket]):
    """The updates of one optimizer that are still to be made.

    Args:
        optimizer: It is wrapped.
        options: Those that it was wrapped with.
    """

    def __init__(self, optimizer: Any, options: Options) -> None:
        super().__init__()
        self._optimizer = optimizer
        self._options = options
        self._dealt: list[Bucket] = []
        self._then: list[tuple[Any, torch.Tensor]] = []  # variables, and what they held when `apply` was called
        self._scopes: dict[str, Any] = {}
        _watch_layers()

    @property
    def _buckets(self) -> Sequence[Bucket]:
        return self._dealt

    def reduce(self, gradients: Sequence[torch.Tensor], variables: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """The averages of a step that needs all of them, sent as those of others: ranks need not agree on which."""
        self._deal(variables, names)
        results = list(gradients)
        for bucket in self._by_urgency():
            bucket.send(gradients, self._options, is_lasting=False)
        for bucket in self._dealt:
            for index, result in zip(bucket.indices, bucket.wait(), strict=True):
                results[index] = result
            bucket.averages = None
        return results

    def _deal(self, variables: Sequence[Any], names: Sequence[str]) -> None:
        parameters = [variable.value for variable in variables]
        known = {id(one): index for index, one in enumerate(parameters)}
        dealt = [parameter for bucket in self._dealt for parameter in bucket.parameters]
        if {id(one) for one in dealt} == set(known):
            return
        adapter.tell_untuned(
            "Keras on PyTorch", "gradients go when backward is done, in as many operations as groups says"
        )
        groups = deal(parameters, self._options.groups, SOONER_BUCKET_BYTES)
        self._dealt = [Bucket([known[id(one)] for one in group], variables, names) for group in groups]
        self._begin_anew()

    def _by_urgency(self) -> list[Bucket]:
        return sorted(self._dealt, key=lambda bucket: -bucket.priority)

    def defers(self, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
        """Whether this step's updates wait for their use; where they cannot, says why, once."""
        if not self._optimizer.built or self._options.process_set.size() == 1:
            return False
        reason = why_never(self._optimizer) or _why_not(gradients, variables) or self._optimizer._ring_reason
        if reason:
            self._tell(reason)
        return not reason

    def defer(self, gradients: Sequence[torch.Tensor], variables: Sequence[Any], names: Sequence[str]) -> None:
        """Send all gradients, and let every variable's update wait for its use."""
        self._deal(variables, names)
        self._follow_first_forward()
        optimizer = self._optimizer
        changing = [optimizer.iterations]
        if isinstance(optimizer._learning_rate, keras.Variable):
            changing.append(optimizer._learning_rate)
        self._then = [(variable, variable.value.detach().clone()) for variable in changing]
        self._scopes = {name: global_state.get_global_attribute(name) for name in _SCOPES}
        for bucket in self._by_urgency():
            bucket.send(gradients, self._options, is_lasting=True)
        for bucket in self._dealt:
            self._defer(bucket)

    def _make(self, update: Update[Bucket]) -> None:
        averages = update.bucket.wait()
        with torch.no_grad(), self._as_at_apply():
            self._optimizer._ring_step(averages, update.bucket.variables)
        update.bucket.averages = None

    @contextlib.contextmanager
    def _as_at_apply(self) -> Iterator[None]:
        scopes = {name: global_state.get_global_attribute(name) for name in _SCOPES}
        _enter(self._scopes)
        now = [(variable, variable.value.detach().clone()) for variable, _ in self._then]
        try:
            _assign(self._then)
            yield
        finally:
            _assign(now)
            _enter(scopes)

    def _abandon(self) -> None:
        for bucket in self._dealt:
            with contextlib.suppress(RingcoreError):  # nobody wants it any more, and what has failed is told
                bucket.wait()
            bucket.averages = None


def _assign(values: list[tuple[Any, torch.Tensor]]) -> None:
    for variable, value in values:
        variable.assign(value)


def _enter(scopes: dict[str, Any]) -> None:
    for name, value in scopes.items():
        global_state.set_global_attribute(name, value)


def why_never(optimizer: Any) -> str:
    """Why variables of this optimizer, which is wrapped, cannot be stepped one by one; empty where they can."""
    kind = type(optimizer).__mro__[2]
    known = tuple(getattr(keras.optimizers, name) for name in _BY_VARIABLE if hasattr(keras.optimizers, name))
    if not issubclass(kind, known) or issubclass(kind, keras.optimizers.Nadam) or kind.__module__[:6] != "keras.":
        return f"a step of {kind.__name__} may need all gradients"
    rate = optimizer._learning_rate
    is_schedule = isinstance(rate, keras.Variable | keras.optimizers.schedules.LearningRateSchedule)
    reasons = {
        "global_clipnorm clips by the norm of all gradients": optimizer.global_clipnorm,
        "use_ema averages all variables at the end of a step": optimizer.use_ema,
        "gradient_accumulation_steps adds gradients up before they are averaged": optimizer.gradient_accumulation_steps,
        "loss_scale_factor divides gradients before they are averaged": optimizer.loss_scale_factor,
        "the learning rate is a function, which may tell another one later": callable(rate) and not is_schedule,
        "in an elastic job the ranks that are there at the end of a step repeat it": adapter.is_elastic(),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _why_not(gradients: Sequence[Any], variables: Sequence[Any]) -> str:
    """Why these cannot be stepped later."""
    if any(gradient is None for gradient in gradients):
        return "a variable has no gradient"
    if any(getattr(variable, "overwrite_with_gradient", False) for variable in variables):
        return "a variable is overwritten by its gradient"
    if len({variable.dtype for variable in variables}) > 1:
        return "variables are of several dtypes, and the first one's is that of the learning rate"
    return why_not_now() or why_not_hidden(variable.value for variable in variables)


@functools.cache
def _watch_layers() -> None:
    """Keras calls no hooks of torch's modules; and what a layer calls may know nothing of torch."""
    plain = keras.Layer.__call__

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Only its own: those of layers inside are waited for when these are called, and so are modules of torch.
        is_module = isinstance(self, keras.layers.TorchModuleWrapper)
        for variable in () if is_module else vars(self).get("_trainable_variables", ()):
            if isinstance(variable._value, PendingParameter):
                variable._value._ring_update.settle()
        return plain(self, *args, **kwargs)

    keras.Layer.__call__ = call
