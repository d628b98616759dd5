"""An optimizer whose ranks wait for each other no longer than a bound on how old gradients may be."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from ringcore import InvalidArgument, adapter
from ringcore.adapter import Asynchronous, AsynchronousSteps, ProcessSet, global_process_set

from ringcore_torch.compression import Compression, Compressor
from ringcore_torch.optimizer import named_of
from ringcore_torch.parameters import check_dtypes
from ringcore_torch.state import broadcast_parameters, check_weights_of
from ringcore_torch.wrapping import with_methods


def _view(memory: memoryview, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Of memory that lies in a row of gradients."""
    kind: torch.dtype = getattr(torch, dtype)
    return torch.frombuffer(memory, dtype=kind).view(shape) if len(memory) > 0 else torch.empty(shape, dtype=kind)


class _AsyncOptimizer(torch.optim.Optimizer):
    """The methods that a wrapped optimizer gets; see `AsyncOptimizer`."""

    _inner: torch.optim.Optimizer
    _newest: list[torch.Tensor]  # by parameter: the weights with all sums so far
    _steps: AsynchronousSteps
    _named: list[tuple[str, torch.Tensor]]
    _process_set: ProcessSet
    _checks_weights: bool
    _taken: list[int]

    @adapter.optimizer_step()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Offer this rank's gradient to the next sum, and go on with the newest weights.

        Waits until at most `staleness` gradients of this rank are in no weights.

        Raises:
            InvalidArgument: A closure, a sparse gradient, or weights that somebody has changed since the last step.
            MismatchError: In the first step: ranks were given other arguments, or begin with other weights.
            PeerLostError: A rank is lost; so in all calls from now on.
        """
        if closure is not None:
            raise InvalidArgument("AsyncOptimizer.step takes no closure; call backward() before step()")
        self._steps.started()
        if [parameter._version for _, parameter in self._named] != self._taken:
            raise InvalidArgument(
                "the weights were changed since the last step, and the newest ones would overwrite that; load weights "
                "before the first step, or behind synchronize() on all ranks, and call load_state_dict() then"
            )
        touched = [parameter.grad is not None for parameter in self._parameters()]
        self._steps.step(_numbers_of(self.param_groups), touched, self._collect)
        return None

    def _collect(self, views: list[torch.Tensor]) -> None:
        """Copy the gradients that autograd has left; zeros where there is none."""
        for parameter, view in zip(self._parameters(), views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.is_sparse:
                raise InvalidArgument(
                    f"the gradient of a parameter of shape {list(parameter.shape)} is sparse, which AsyncOptimizer "
                    "does not take; use sparse=False, or DistributedOptimizer"
                )
            else:
                view.copy_(parameter.grad)

    def synchronize(self) -> None:
        """Wait until all ranks have called this and all gradients are in the weights: the same ones on all ranks.

        Before weights are evaluated or written, and behind the last step.
        """
        self._steps.synchronize()

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
        """How many sums the weights of this rank have."""
        return self._steps.updates

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _check(self) -> None:
        if self._checks_weights:
            check_weights_of(self._named, self._process_set, "asynchronous.weights", broadcast_by="AsyncOptimizer")

    def _begin(self) -> None:
        """Go on from the program's weights."""
        with torch.no_grad():
            torch._foreach_copy_(self._newest, [parameter.detach() for parameter in self._parameters()])
        self._taken = [parameter._version for _, parameter in self._named]

    def _update(self, numbers: Sequence[float], gradients: list[torch.Tensor | None]) -> None:
        """In the thread that takes part in the sums."""
        for newest, gradient in zip(self._newest, gradients, strict=True):
            newest.grad = gradient
        _set_numbers(self._inner.param_groups, numbers)
        self._inner.step()

    def _take_newest(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self._parameters(), self._newest)
        self._taken = [parameter._version for _, parameter in self._named]

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's, as it would be alone; the same on all ranks behind `synchronize()`."""
        with self._steps.stepping():
            return copy.deepcopy(self._inner.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a `state_dict`, and the weights that the model has now. All ranks call it, behind `synchronize`."""
        with self._steps.anew():
            self._inner.load_state_dict(dict(state_dict))
            for own, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
                own.update({key: value for key, value in inner.items() if key != "params"})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: what is summed up is settled."""
        if "_steps" in self.__dict__:
            raise InvalidArgument("an AsyncOptimizer takes no more parameters; add them before wrapping")
        super().add_param_group(param_group)


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (isinstance(value, torch.Tensor) and value.ndim == 0)


def _settings_of(group: Mapping[str, Any]) -> list[str]:
    """Of a group of parameters, what consists of numbers: rates, momenta, ..."""

    def consists(value: Any) -> bool:
        return _is_number(value) or (isinstance(value, (tuple, list)) and all(map(_is_number, value)))

    return sorted(key for key, value in group.items() if key != "params" and consists(value))


def _numbers_of(groups: Iterable[Mapping[str, Any]]) -> list[float]:
    numbers: list[float] = []
    for group in groups:
        for key in _settings_of(group):
            value = group[key]
            numbers += map(float, value if isinstance(value, (tuple, list)) else [value])
    return numbers


def _set_numbers(groups: Iterable[dict[str, Any]], numbers: Iterable[float]) -> None:
    """What `_numbers_of` has read, each of its own kind."""
    left = iter(numbers)

    def like(value: Any) -> Any:
        number = next(left)
        return torch.full_like(value, number) if isinstance(value, torch.Tensor) else type(value)(number)

    for group in groups:
        for key in _settings_of(group):
            value = group[key]
            group[key] = type(value)(map(like, value)) if isinstance(value, (tuple, list)) else like(value)


def AsyncOptimizer(  # noqa: N802 - the field's name for it
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    staleness: int,
    threshold: int | None = None,
    compression: type[Compressor] | str = Compression.none,
    process_set: ProcessSet = global_process_set,
    check_weights: bool = True,
    broadcast: bool = False,
) -> Any:
    """Wrap an optimizer: weights are stepped by sums of the gradients of those ranks that have one first.

    A sum is complete with `threshold` gradients, of any ranks, and is their average. A gradient is thrown away when
    more than `staleness` sums have come since the weights that it was made with. Every rank applies every sum, in the
    same order, beside the forward and backward that it is in: a slow one holds nobody up, and after each update all
    ranks have the same bits. (iSwitch: Li et al. 2019; Chen et al. 2016 for staleness=0 and a threshold below the
    number of ranks.)

    With all ranks as the threshold and `staleness=0` it is data-parallel training. The result is of the optimizer's own
    class; its `param_groups` are for schedulers, which each rank steps by its own steps: a sum is stepped with the
    rates of the first rank that contributed to it. There are three more copies of the parameters.

    Args:
        optimizer: Of any class of `torch.optim`, with dense parameters in host memory.
        named_parameters: `model.named_parameters()`; names make errors readable.
        staleness: How many updates old a gradient may be, from 0. From 1 on, sums are made while the next gradient is.
        threshold: How many gradients make a sum; None: as many as there are ranks.
        compression: What is sent: `Compression.fp16` or `bf16` halves float32; `int8` and `int4` between hosts.
        process_set: The ranks that train together.
        check_weights: Before the first step, compare the parameters of all ranks.
        broadcast: Give all ranks the parameters of the first rank now.

    Raises:
        InvalidArgument: Bounds that are none, an elastic job, parameters on a GPU, an optimizer that is wrapped, or a
            compression that has to see each gradient of each rank.
    """
    if isinstance(optimizer, _AsyncOptimizer) or hasattr(optimizer, "_ring") or "_process_set" in vars(optimizer):
        raise InvalidArgument("the optimizer is wrapped already; wrap it once")
    compressor = Compression.chosen(compression, who="AsyncOptimizer")
    arguments = Asynchronous.checked(staleness, threshold, Compression.name_of(compressor), process_set)
    named = named_of(optimizer, named_parameters)
    check_dtypes(named)
    if on_gpu := [name for name, parameter in named if not parameter.is_cpu]:
        raise InvalidArgument(
            f"'{on_gpu[0]}' lies on a GPU, and AsyncOptimizer steps in host memory; use DistributedOptimizer there"
        )
    if broadcast:
        broadcast_parameters(named, root_rank=process_set.ranks[0], process_set=process_set)
    wrapped = with_methods(optimizer, _AsyncOptimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    newest = {id(parameter): parameter.detach().clone() for parameter in parameters}
    inner: Any = object.__new__(type(optimizer))
    inner.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    inner.param_groups = [
        {**group, "params": [newest[id(parameter)] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    inner.state = defaultdict(dict, {newest[id(own)]: state for own, state in optimizer.state.items()})
    wrapped.state = defaultdict(dict)
    wrapped._inner, wrapped._named = inner, named
    wrapped._newest = [newest[id(parameter)] for parameter in parameters]
    wrapped._process_set = process_set
    wrapped._checks_weights = check_weights and process_set.size() > 1
    wrapped._taken = []
    wrapped._steps = AsynchronousSteps(
        arguments,
        [(str(parameter.dtype).removeprefix("torch."), tuple(parameter.shape)) for parameter in parameters],
        view=_view, count_numbers=lambda: len(_numbers_of(wrapped.param_groups)), check=wrapped._check,
        begin=wrapped._begin, update=wrapped._update, take_newest=wrapped._take_newest,
    )  # fmt: skip
    return wrapped
