"""An optimizer whose ranks wait for each other no longer than a bound on how old gradients may be."""

from __future__ import annotations

import copy
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from ringcore import InvalidArgument, Sum, adapter
from ringcore.adapter import AsynchronousSums, Handle, Offer, ProcessSet, check_bounds, global_process_set, name_or_next

from ringcore_torch import _operations as plain
from ringcore_torch.memory import registered_zeros
from ringcore_torch.optimizer import named_of
from ringcore_torch.parameters import check_dtypes
from ringcore_torch.state import broadcast_parameters, check_weights_of
from ringcore_torch.wrapping import with_methods


class _Row:
    """What belongs to the parameters of one dtype, one behind the other.

    Attributes:
        newest: The weights with all sums so far, of which the program's own are a copy.
        offered: This rank's gradient, which is in no sum yet.
        summed: What is summed up.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = list(parameters)
        ends = list(itertools.accumulate(parameter.numel() for parameter in parameters))
        self._borders = list(zip([0, *ends[:-1]], ends, strict=True))
        first, count = self.parameters[0], ends[-1]
        self._values = torch.empty(count, dtype=first.dtype, device="cpu")
        self.newest = self._views(self._values)
        self.offered, self.summed = (registered_zeros(count, first.dtype, first.device) for _ in range(2))
        self._gradients = {id(row): self._views(row) for row in (self.offered, self.summed)}
        self.begin()

    def _views(self, row: torch.Tensor) -> list[torch.Tensor]:
        return [
            row[begin:end].view(parameter.shape)
            for (begin, end), parameter in zip(self._borders, self.parameters, strict=True)
        ]

    def begin(self) -> None:
        """Go on from the program's weights."""
        torch._foreach_copy_(self.newest, [parameter.detach() for parameter in self.parameters])

    def collect(self) -> None:
        """Copy the gradients that autograd has left; zeros where there is none."""
        for parameter, view in zip(self.parameters, self._gradients[id(self.offered)], strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.is_sparse:
                raise InvalidArgument(
                    f"the gradient of a parameter of shape {list(parameter.shape)} is sparse, which AsyncOptimizer "
                    "does not take; use sparse=False, or DistributedOptimizer"
                )
            else:
                view.copy_(parameter.grad)

    def take(self, contributes: bool) -> None:
        """Let the next sum begin with what was offered, or with zeros."""
        if contributes:
            self.offered, self.summed = self.summed, self.offered
        else:
            self.summed.zero_()

    def gradients(self) -> list[torch.Tensor]:
        """By parameter: what was summed up."""
        return self._gradients[id(self.summed)]


class _AsyncOptimizer(torch.optim.Optimizer):
    """The methods that a wrapped optimizer gets; see `AsyncOptimizer`."""

    _inner: torch.optim.Optimizer
    _rows: list[_Row]
    _newest: list[torch.Tensor]  # by parameter
    _sums: AsynchronousSums | None
    _named: list[tuple[str, torch.Tensor]]
    _process_set: ProcessSet
    _prefix: str
    _bounds: tuple[int, int]
    _checks_weights: bool
    _version: int
    _taken: list[int]
    _stepping: threading.Lock  # Guards: `_inner`, the newest weights, and how many sums are in them.
    _updates: int

    @adapter.optimizer_step()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Offer this rank's gradient to the next sum, and go on with the newest weights.

        Waits until at most `staleness` gradients of this rank are in no weights.

        Raises:
            InvalidArgument: A closure, a sparse gradient, or weights that somebody has changed since the last step.
            PeerLostError: A rank is lost; so in all calls from now on.
        """
        if closure is not None:
            raise InvalidArgument("AsyncOptimizer.step takes no closure; call backward() before step()")
        sums = self._started()
        if [parameter._version for _, parameter in self._named] != self._taken:
            raise InvalidArgument(
                "the weights were changed since the last step, and the newest ones would overwrite that; load weights "
                "before the first step, or behind synchronize() on all ranks, and call load_state_dict() then"
            )
        sums.wait_for_room()
        for row in self._rows:
            row.collect()
        touched = [parameter.grad is not None for parameter in self._parameters()]
        sums.offer(Offer(self._version, _numbers_of(self.param_groups), touched))
        sums.wait_for_sums()
        self._take_newest()
        return None

    def synchronize(self) -> None:
        """Wait until all ranks have called this and all gradients are in the weights: the same ones on all ranks.

        Before weights are evaluated or written, and behind the last step.
        """
        self._started().meet(self._take_newest)

    @property
    def dropped(self) -> int:
        """How many gradients of this rank were too old to be summed up."""
        return 0 if self._sums is None else self._sums.dropped

    @property
    def oldest(self) -> int:
        """How many updates old the oldest gradient of this rank was that was summed up."""
        return 0 if self._sums is None else self._sums.oldest

    @property
    def updates(self) -> int:
        """How many sums the weights of this rank have."""
        return self._version

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _started(self) -> AsynchronousSums:
        if self._sums is not None:
            return self._sums
        if self._checks_weights:
            check_weights_of(self._named, self._process_set, "asynchronous.weights", broadcast_by="AsyncOptimizer")
        for row in self._rows:
            row.begin()
        self._version = self._updates = 0
        self._taken = [parameter._version for _, parameter in self._named]
        staleness, threshold = self._bounds
        self._prefix = name_or_next(None, "asynchronous", self._process_set)
        self._sums = AsynchronousSums(
            self._prefix, self._process_set, staleness=staleness,
            threshold=threshold, count_numbers=len(_numbers_of(self.param_groups)),
            count_parameters=len(self._parameters()), take=self._take, sum_up=self._sum_up, update=self._update,
        )  # fmt: skip
        self._sums.start()
        return self._sums

    def _on_init(self) -> None:
        """The ranks may be others."""
        self._sums = None

    def _take(self, contributes: bool) -> None:
        for row in self._rows:
            row.take(contributes)

    def _sum_up(self, factor: float) -> list[Handle]:
        return [
            plain.allreduce_async_(
                row.summed,
                op=Sum,
                name=f"{self._prefix}.{index}",
                postscale_factor=factor,
                process_set=self._process_set,
            )
            for index, row in enumerate(self._rows)
        ]

    def _update(self, numbers: Sequence[float], touched: Sequence[bool]) -> None:
        """In the thread that takes part in the sums."""
        gradients = {
            id(newest): gradient
            for row in self._rows
            for newest, gradient in zip(row.newest, row.gradients(), strict=True)
        }
        with self._stepping:
            for newest, is_touched in zip(self._newest, touched, strict=True):
                newest.grad = gradients[id(newest)] if is_touched else None
            _set_numbers(self._inner.param_groups, numbers)
            self._inner.step()
            self._updates += 1

    def _take_newest(self) -> None:
        with self._stepping, torch.no_grad():
            for row in self._rows:
                torch._foreach_copy_(row.parameters, row.newest)
            self._version = self._updates
        self._taken = [parameter._version for _, parameter in self._named]

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's, as it would be alone; the same on all ranks behind `synchronize()`."""
        with self._stepping:
            return copy.deepcopy(self._inner.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a `state_dict`, and the weights that the model has now. All ranks call it, behind `synchronize`."""
        with self._stepping:
            self._inner.load_state_dict(dict(state_dict))
            for row in self._rows:
                row.begin()
        for own, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            own.update({key: value for key, value in inner.items() if key != "params"})
        self._taken = [parameter._version for _, parameter in self._named]
        if self._sums is not None:
            plain.barrier(process_set=self._process_set)  # nobody makes a sum before all have what they step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: what is summed up is settled."""
        if "_rows" in self.__dict__:
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
        process_set: The ranks that train together.
        check_weights: Before the first step, compare the parameters of all ranks.
        broadcast: Give all ranks the parameters of the first rank now.

    Raises:
        InvalidArgument: Bounds that are none, an elastic job, parameters on a GPU, or an optimizer that is wrapped.
    """
    if isinstance(optimizer, _AsyncOptimizer) or hasattr(optimizer, "_ring") or "_process_set" in vars(optimizer):
        raise InvalidArgument("the optimizer is wrapped already; wrap it once")
    bounds = staleness, check_bounds(staleness, threshold, process_set)
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
    kinds: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in parameters:
        kinds.setdefault(parameter.dtype, []).append(parameter)
    rows = [_Row(kind) for kind in kinds.values()]
    newest = {id(own): new for row in rows for own, new in zip(row.parameters, row.newest, strict=True)}
    inner: Any = object.__new__(type(optimizer))
    inner.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    inner.param_groups = [
        {**group, "params": [newest[id(parameter)] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    inner.state = defaultdict(dict, {newest[id(own)]: state for own, state in optimizer.state.items()})
    wrapped.state = defaultdict(dict)
    wrapped._inner, wrapped._rows, wrapped._named = inner, rows, named
    wrapped._newest = [newest[id(parameter)] for parameter in parameters]
    wrapped._process_set, wrapped._bounds = process_set, bounds
    wrapped._checks_weights = check_weights and process_set.size() > 1
    wrapped._sums, wrapped._stepping = None, threading.Lock()
    wrapped._version = wrapped._updates = 0
    wrapped._taken = []
    adapter.after_init(wrapped._on_init)
    return wrapped
