"""Optimizers whose ranks step on their own, and meet every so many steps."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from ringcore import InvalidArgument, RingcoreError, adapter
from ringcore.adapter import ProcessSet, global_process_set, name_or_next

from ringcore_torch._differentiable import grouped_allreduce
from ringcore_torch.averages import Averages
from ringcore_torch.compression import Compression, Compressor
from ringcore_torch.optimizer import named_of
from ringcore_torch.parameters import check_dtypes
from ringcore_torch.state import check_weights_of
from ringcore_torch.wrapping import with_methods


class _LocalOptimizer(torch.optim.Optimizer):
    """The methods that an optimizer gets whose ranks step on their own."""

    _kind: ClassVar[str]
    _named: list[tuple[str, torch.Tensor]]
    _every: int
    _steps: int
    _process_set: ProcessSet
    _prefix: str
    _checks_weights: bool
    # The arguments that decide when ranks meet and what they do there.
    _arguments: dict[str, object]
    _compares_arguments: bool
    _loads: int  # states that were loaded since this optimizer was wrapped
    _meetings: int  # that have begun since then

    @adapter.optimizer_step()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Step with this rank's own gradients; every so often, meet the others."""
        self._compare_arguments()
        # Later on each rank has weights of its own between two meetings. All ranks have made as many steps, also one
        # that has loaded a state or has joined the others.
        if self._checks_weights and self._steps == 0 and self._process_set.size() > 1:
            check_weights_of(self._named, self._process_set, f"{self._prefix}.weights", broadcast_by="")
        if self._steps == 0:
            self._begin()
        loss = super().step(closure)
        self._steps += 1
        self._meet()
        return loss

    def _compare_arguments(self) -> None:
        """Before the first step, also of a run that goes on from a state.

        In an elastic job whoever joins has the others' steps, and compares with them where they have made none; what
        one has loaded the others take over.
        """
        compares, self._compares_arguments = self._compares_arguments, False
        if adapter.is_elastic():
            compares = self._steps == 0
        if compares and self._process_set.size() > 1:
            loaded = f"after {self._steps} steps" if self._loads and not adapter.is_elastic() else None
            arguments = {**self._arguments, "the loaded state": loaded}
            adapter.check_arguments(self._kind, arguments, self._process_set, name=f"{self._prefix}.arguments")

    def _start_check(self, names: int, *, blocking: bool) -> Callable[[], None]:
        """Begin to look whether the others meet after the same step; one may have loaded a state since it began.

        Args:
            names: So many of these looks may be under way at once. They are told apart by their order, as ranks that
                are at different steps meet for different fragments.
            blocking: The caller waits at once.
        """
        if self._process_set.size() == 1 or adapter.is_elastic():  # there whoever joins has the others' steps
            return lambda: None
        self._meetings += 1
        return adapter.start_progress_check(
            self._kind, self._steps, self._loads, self._process_set,
            name=f"{self._prefix}.met.{self._meetings % names}", blocking=blocking,
        )  # fmt: skip

    def _begin(self) -> None:
        """The first step is about to be made."""

    def _meet(self) -> None:
        raise NotImplementedError

    def _average(self) -> None:
        """Average the parameters themselves, and wait."""
        self._start_check(1, blocking=True)()
        held = [parameter.detach() for _, parameter in self._named]
        averages = grouped_allreduce(held, name=f"{self._prefix}.values", process_set=self._process_set)
        torch._foreach_copy_(held, averages)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's, which is this rank's own, and how many steps it has made."""
        return {**super().state_dict(), "steps": self._steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a `state_dict`; the parameters are loaded with the model."""
        super().load_state_dict(dict(state_dict))
        self._steps = state_dict["steps"]
        self._loads += 1


class _LocalSGD(_LocalOptimizer):
    """The methods of an optimizer that was wrapped by `LocalSGD`."""

    _kind = "LocalSGD"

    def _meet(self) -> None:
        if self._steps % self._every == 0:
            self.synchronize()

    def synchronize(self) -> None:
        """Average the parameters now: before they are evaluated or written. All ranks call it."""
        self._average()


class _DiLoCo(_LocalOptimizer):
    """The methods of an optimizer that was wrapped by `DiLoCo`."""

    _kind = "DiLoCo"
    _outer: torch.optim.Optimizer
    _anchors: list[torch.Tensor]
    _fragments: list[list[int]]
    _delay: int
    _alpha: float
    _compression: type[Compressor]
    # By number of the fragment: gives the average way that its next outer step takes, and raises where ranks have sent
    # theirs behind different steps.
    _ways: dict[int, Callable[[], list[torch.Tensor]]]
    _checks: dict[int, Callable[[], None]]

    def _begin(self) -> None:
        # The weights may have been broadcast, or loaded, since the optimizer was wrapped.
        torch._foreach_copy_(self._anchors, [parameter.detach() for _, parameter in self._named])

    def _meet(self) -> None:
        count = len(self._fragments)
        for number in range(count):
            # They take turns, and each is due every so many steps.
            phase = self._steps + number * self._every // count
            if (phase + self._delay) % self._every == 0:
                self._send(number)
            if phase % self._every == 0:
                self._step_outer(number)

    def synchronize(self) -> None:
        """Take now the outer steps whose averages are under way. All ranks call it.

        Between two meetings parameters stay each rank's own: the one model is `state_dict()["outer"]["anchors"]`, in
        the order of the named parameters.
        """
        for number in sorted(self._ways):
            self._step_outer(number)

    def _of(self, number: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The parameters of a fragment, and where all ranks were with them the last time."""
        fragment = self._fragments[number]
        return [self._named[index][1] for index in fragment], [self._anchors[index] for index in fragment]

    def _send(self, number: int) -> None:
        """Begin to average how far each rank has come with a fragment."""
        parameters, anchors = self._of(number)
        ways = [anchor - parameter.detach() for anchor, parameter in zip(anchors, parameters, strict=True)]
        name = f"{self._prefix}.{number}"
        check = self._start_check(len(self._fragments) + 1, blocking=self._delay == 0)
        if self._delay == 0:
            check()
        else:
            self._checks[number] = check
        self._ways[number] = Averages(ways, self._compression, name=name, process_set=self._process_set).wait

    def _step_outer(self, number: int) -> None:
        """Step a fragment from where all ranks were the last time, by the average of how far each had come."""
        if number not in self._ways:  # it was synchronized since it was sent
            return
        if check := self._checks.pop(number, None):
            check()
        averages = self._ways.pop(number)()
        parameters, anchors = self._of(number)
        own = [parameter.detach().clone() for parameter in parameters] if self._delay and self._alpha else []
        everything = [parameter for _, parameter in self._named]
        gradients = [parameter.grad for parameter in everything]
        for parameter in everything:
            parameter.grad = None
        for parameter, anchor, average in zip(parameters, anchors, averages, strict=True):
            parameter.detach().copy_(anchor)
            parameter.grad = average
        self._outer.step()
        for anchor, parameter in zip(anchors, parameters, strict=True):
            anchor.copy_(parameter.detach())
        if own:
            torch._foreach_lerp_([parameter.detach() for parameter in parameters], own, self._alpha)
        for parameter, gradient in zip(everything, gradients, strict=True):
            parameter.grad = gradient

    def _await_sent(self) -> None:
        """Wait for what is under way and nobody needs: the next one of its name may be sent when it has arrived."""
        for averages in self._ways.values():
            with contextlib.suppress(RingcoreError):
                averages()

    def state_dict(self) -> dict[str, Any]:
        """This rank's own, and what the outer optimizer has, which all ranks share; averages under way are awaited."""
        outer = {
            "state": self._outer.state_dict(),
            "anchors": [one.clone() for one in self._anchors],
            "ways": {number: [way.clone() for way in averages()] for number, averages in self._ways.items()},
        }
        return {**super().state_dict(), "outer": outer}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a `state_dict`; the parameters are loaded with the model."""
        super().load_state_dict(state_dict)
        if not adapter.is_elastic():  # there a state is also taken over where ranks are lost
            self._await_sent()
        outer = state_dict["outer"]
        self._outer.load_state_dict(copy.deepcopy(outer["state"]))
        torch._foreach_copy_(self._anchors, list(outer["anchors"]))
        self._ways = {
            number: functools.partial(list, [way.clone() for way in ways]) for number, ways in outer["ways"].items()
        }
        self._checks = {}


class _CompressedLocalSGD(_DiLoCo):
    """`_LocalSGD` that sends how far each rank has come since the last average, which loses less when it is rounded.

    Every rank adds the same average, of the same bits, to the weights that all ranks had then: DiLoCo, whose outer
    optimizer is SGD of rate 1.
    """

    _kind = "LocalSGD"

    def synchronize(self) -> None:
        """Average the parameters now: before they are evaluated or written. All ranks call it."""
        if self._steps == 0:  # nobody has come anywhere, and ranks may have begun elsewhere
            self._average()
            return
        self._send(0)
        self._step_outer(0)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a `state_dict`; the parameters are loaded with the model."""
        if "outer" not in state_dict:
            raise InvalidArgument(
                "the state is of LocalSGD without a compression, and does not have the parameters that all ranks had "
                "at their last average; make LocalSGD without one to go on from it"
            )
        super().load_state_dict(state_dict)


def LocalSGD(  # noqa: N802 - the field's name for it
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    every: int,
    compression: type[Compressor] | str = Compression.none,
    process_set: ProcessSet = global_process_set,
    check_weights: bool = True,
) -> Any:
    """Wrap an optimizer: ranks step on their own, and average their parameters every so many steps (Stich 2019).

    The optimizer's state stays each rank's own. With a compression there is one more copy of the parameters: what is
    sent is how far a rank has come since all had the same ones, and `state_dict` has these too.

    Args:
        optimizer: Of any class of `torch.optim`.
        named_parameters: `model.named_parameters()`; names make errors readable.
        every: Steps between two averages.
        compression: What is sent: `Compression.int8`, ...
        process_set: The ranks that train together.
        check_weights: Before the first step, compare the parameters of all ranks.

    Raises:
        InvalidArgument: `every` is below 1, or the optimizer is wrapped already.
    """
    compressor = Compression.chosen(compression, who="LocalSGD")
    methods = _LocalSGD if compressor is Compression.none else _CompressedLocalSGD
    wrapped = _wrapped(optimizer, methods, named_parameters, every, process_set, check_weights=check_weights)
    wrapped._arguments["compression"] = Compression.name_of(compressor)
    if methods is _CompressedLocalSGD:
        outer = torch.optim.SGD([parameter for _, parameter in wrapped._named], lr=1.0)
        _set_outer(wrapped, outer, compressor, fragments=1, delay=0, alpha=0.0)
    return wrapped


def DiLoCo(  # noqa: N802 - the field's name for it
    optimizer: torch.optim.Optimizer,
    outer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    every: int,
    fragments: int = 1,
    delay: int = 0,
    alpha: float = 0.5,
    compression: type[Compressor] | str = Compression.none,
    process_set: ProcessSet = global_process_set,
    check_weights: bool = True,
) -> Any:
    """Wrap an optimizer: ranks step on their own; every so many steps an outer optimizer steps by their average way.

    As in Douillard et al. 2023, and with fragments, of which one after the other takes its turn, and a delay, in which
    ranks go on while their ways are averaged, as in Douillard et al. 2025.

    Args:
        optimizer: The inner one, of any class of `torch.optim`; its state stays each rank's own.
        outer: Over the same parameters, such as `torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9,
            nesterov=True)`; on every rank the same.
        named_parameters: `model.named_parameters()`; names make errors readable.
        every: Inner steps between two outer steps of a parameter.
        fragments: How many parts of the parameters take turns; at most `every`.
        delay: Inner steps that ranks make while a way is averaged, the last of them that of the outer step; 0: the
            outer step is waited for.
        alpha: The share that a rank's own parameters, which went on for `delay` steps, keep in what it has after an
            outer step; 0: these steps are forgotten.
        compression: What is sent of the ways: `Compression.int8`, ...
        process_set: The ranks that train together.
        check_weights: Before the first step, compare the parameters of all ranks.

    Raises:
        InvalidArgument: `every`, `fragments`, `delay` or `alpha` do not fit, `outer` has other parameters, or one is
            wrapped already.
    """
    compressor = Compression.chosen(compression, who="DiLoCo")
    wrapped = _wrapped(optimizer, _DiLoCo, named_parameters, every, process_set, check_weights=check_weights)
    adapter.check_outer_steps(every, fragments, delay, alpha)
    theirs = {id(parameter) for group in outer.param_groups for parameter in group["params"]}
    if theirs != {id(parameter) for _, parameter in wrapped._named}:
        raise InvalidArgument("outer has other parameters than optimizer; make both of model.parameters()")
    wrapped._arguments |= {
        "fragments": fragments, "delay": delay, "alpha": alpha, "compression": Compression.name_of(compressor),
        "outer": f"{type(outer).__name__} {outer.defaults}",
    }  # fmt: skip
    _set_outer(wrapped, outer, compressor, fragments=fragments, delay=delay, alpha=alpha)
    return wrapped


def _set_outer(
    wrapped: Any, outer: torch.optim.Optimizer, compressor: type[Compressor], *, fragments: int, delay: int,
    alpha: float,
) -> None:  # fmt: skip
    wrapped._outer = outer
    wrapped._delay, wrapped._alpha = delay, alpha
    wrapped._compression = compressor
    wrapped._ways, wrapped._checks = {}, {}
    wrapped._anchors = [parameter.detach().clone() for _, parameter in wrapped._named]
    dealt = adapter.dealt_evenly([parameter.numel() for _, parameter in wrapped._named], fragments)
    wrapped._fragments = [fragment for fragment in dealt if fragment]


def _wrapped(
    optimizer: torch.optim.Optimizer,
    methods: type[_LocalOptimizer],
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    every: int,
    process_set: ProcessSet,
    *,
    check_weights: bool,
) -> Any:
    if isinstance(optimizer, _LocalOptimizer) or hasattr(optimizer, "_ring"):
        raise InvalidArgument("the optimizer is wrapped already; wrap it once")
    if every < 1:
        raise InvalidArgument(f"every is at least 1, not {every}")
    named = named_of(optimizer, named_parameters)
    check_dtypes(named)
    wrapped = with_methods(optimizer, methods)
    wrapped._named, wrapped._every, wrapped._steps = named, every, 0
    wrapped._process_set = process_set
    wrapped._prefix = name_or_next(None, "local", process_set) if process_set.included() else "local"
    wrapped._checks_weights = check_weights
    wrapped._arguments, wrapped._compares_arguments = {"every": every}, True
    wrapped._loads, wrapped._meetings = 0, 0
    return wrapped
