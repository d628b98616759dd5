"""An optimizer that servers hold: ranks push gradients, and pull parameters."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from ringcore import InvalidArgument, adapter
from ringcore.adapter import Placed, Served, global_process_set

from ringcore_torch.buckets import SOONER_BUCKET_BYTES
from ringcore_torch.memory import keep_freed_memory, registered_zeros
from ringcore_torch.optimizer import named_of
from ringcore_torch.state import broadcast_parameters, check_weights_of
from ringcore_torch.unchanged import Unchanged
from ringcore_torch.wrapping import with_methods

_CLIP = "clip with optimizer.clip_grad_norm(max_norm) in place of torch.nn.utils.clip_grad_norm_"


def _numbers_of_sgd(group: Mapping[str, Any]) -> dict[str, float | bool]:
    numbers: dict[str, float | bool] = {
        name: float(group[name]) for name in ("lr", "momentum", "dampening", "weight_decay")
    }
    flags = {name: bool(group[name]) for name in ("nesterov", "maximize")}
    return {**numbers, **flags, "rate_in_momentum": False}


def _numbers_of_adam(group: Mapping[str, Any]) -> dict[str, float | bool]:
    numbers: dict[str, float | bool] = {name: float(group[name]) for name in ("lr", "eps", "weight_decay")}
    beta1, beta2 = (float(beta) for beta in group["betas"])
    flags = {name: bool(group[name]) for name in ("amsgrad", "maximize")}
    decoupled = bool(group.get("decoupled_weight_decay", False))
    return {**numbers, **flags, "beta1": beta1, "beta2": beta2, "decoupled": decoupled}


def _numbers_of_adamw(group: Mapping[str, Any]) -> dict[str, float | bool]:
    return {**_numbers_of_adam(group), "decoupled": True}


def _numbers_of_adagrad(group: Mapping[str, Any]) -> dict[str, float | bool]:
    names = ("lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value")
    return {**{name: float(group[name]) for name in names}, "maximize": bool(group["maximize"])}


# By class, whose subclasses may step otherwise: the servers' rule, and the numbers that it takes.
_RULES: dict[type[torch.optim.Optimizer], tuple[str, Callable[[Mapping[str, Any]], dict[str, float | bool]]]] = {
    torch.optim.SGD: ("sgd", _numbers_of_sgd),
    torch.optim.Adam: ("adam", _numbers_of_adam),
    torch.optim.AdamW: ("adam", _numbers_of_adamw),
    torch.optim.Adagrad: ("adagrad", _numbers_of_adagrad),
}


class _Rows:
    """Parameters in rows, one behind the other: they become views of these.

    Attributes:
        placed: By parameter: where it lies.
        values: The rows.
        gradients: In the same order.

    Args:
        named: The parameters, of one dtype.
        group_of: By parameter: the index of its group.
    """

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]], group_of: Sequence[int]) -> None:
        self._named = list(named)
        self.placed: list[Placed] = []
        sizes: list[int] = []
        for (_, parameter), group in zip(named, group_of, strict=True):
            if not sizes or sizes[-1] * parameter.element_size() >= SOONER_BUCKET_BYTES:
                sizes.append(0)
            self.placed.append(Placed(len(sizes) - 1, sizes[-1], sizes[-1] + parameter.numel(), group))
            sizes[-1] += parameter.numel()
        self.values, self.gradients = self.new(), self.new()
        for (_, parameter), view in zip(named, self.views(self.values), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view

    def new(self) -> list[torch.Tensor]:
        """Rows of zeros of the same sizes."""
        sizes = [max(one.end for one in row) for _, row in itertools.groupby(self.placed, lambda one: one.row)]
        first = self._named[0][1]
        return [registered_zeros(size, first.dtype, first.device) for size in sizes]

    def views(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """By parameter: its part of such rows, in its shape."""
        return [
            rows[place.row][place.begin : place.end].view(parameter.shape)
            for place, (_, parameter) in zip(self.placed, self._named, strict=True)
        ]

    def check(self) -> None:
        """Refuse what cannot be pushed.

        Raises:
            InvalidArgument: A gradient is sparse, or the parameter is not where it was.
        """
        for (name, parameter), view in zip(self._named, self.views(self.values), strict=True):
            if parameter.data_ptr() != view.data_ptr() and parameter.numel() > 0:
                raise InvalidArgument(
                    f"'{name}' was moved after its optimizer was wrapped; wrap the optimizer after moving the model, "
                    "and load weights with load_state_dict()"
                )
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise InvalidArgument(f"the gradient of '{name}' is sparse; use sparse=False, or DistributedOptimizer")

    def collect(self) -> None:
        """Copy what autograd has left into the gradients; zeros where there is none."""
        for (_, parameter), view in zip(self._named, self.views(self.gradients), strict=True):
            view.zero_() if parameter.grad is None else view.copy_(parameter.grad)


class _ServerOptimizer(torch.optim.Optimizer):
    """The methods that a wrapped optimizer gets; see `ServerOptimizer`."""

    _served: Served
    _rows: _Rows
    _unchanged: Unchanged | None
    _staleness: int | None
    _named: list[tuple[str, torch.Tensor]]
    _prefix: str
    _kind: type[torch.optim.Optimizer]
    _unchecked: bool
    _sends: bool
    _taken: list[int]
    _factor: float | None

    @adapter.optimizer_step()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Push this rank's gradients, let servers step the parameters by their average, and pull these.

        Raises:
            InvalidArgument: A closure, a sparse gradient, weights that were changed since the last step, or ranks that
                step with different numbers: then nothing was stepped.
            PeerLostError: A rank or a server is lost; so in all calls from now on.
        """
        if closure is not None:
            raise InvalidArgument("ServerOptimizer.step takes no closure; call backward() before step()")
        self._check()
        gradients = None
        if self._factor is None:
            self._rows.collect()
            gradients = self._rows.gradients
        factor = 1.0 if self._factor is None else self._factor
        self._begin_anew()
        touched = [parameter.grad is not None for _, parameter in self._named]
        if self._staleness is None:
            self._served.step(self._rows.values, gradients, self._numbers(), touched, factor)
        else:
            self._served.step_alone(self._rows.values, self._rows.gradients, self._numbers(), touched)
        self._take_note()
        return None

    def synchronize(self) -> None:
        """With a `staleness`: wait until all ranks have called this, and take the weights, the same on all ranks.

        Before weights are evaluated or written, and behind the last step.
        """
        if self._staleness is not None:
            self._keep_up()
            self._served.meet(self._rows.values)
            self._take_note()

    def _check(self) -> None:
        if self._unchanged is not None:
            self._unchanged.check()
        self._rows.check()
        self._keep_up()

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        """Scale the averaged gradients so that their norm, over all parameters, is at most this.

        In place of `torch.nn.utils.clip_grad_norm_`, which would see this rank's own gradients. The averages are on the
        servers, which step by them at the next `step`. With a `staleness` gradients are not averaged, and this is
        `torch.nn.utils.clip_grad_norm_`.

        Returns:
            The norm before.
        """
        if self._staleness is not None:
            return torch.nn.utils.clip_grad_norm_([parameter for _, parameter in self._named], max_norm)
        self._check()
        self._rows.collect()
        norm = self._served.push(self._rows.gradients) ** 0.5
        self._factor = min(1.0, max_norm / (norm + 1e-6))
        return torch.tensor(norm, dtype=torch.float64, device="cpu")

    def send_weights(self) -> None:
        """Let servers go on from rank 0's weights: after weights were loaded or changed. All ranks call it."""
        self._served.send_weights(self._rows.values)
        self._sends = False
        self._take_note()

    def _keep_up(self) -> None:
        """Before servers step: they have the weights that the ranks have."""
        if self._unchecked:
            self._unchecked = False
            check_weights_of(
                self._named, global_process_set, f"{self._prefix}.weights", broadcast_by="ServerOptimizer"
            )  # fmt: skip
        if self._sends:
            self.send_weights()
        elif self._taken != [parameter._version for _, parameter in self._named]:
            raise InvalidArgument(
                "the weights were changed since the last step, and servers step the ones that they have; call "
                "optimizer.send_weights() on all ranks after weights were loaded or changed"
            )

    def _take_note(self) -> None:
        for _, parameter in self._named:
            # The engine writes past torch: backward of what was computed from the old values is to say so.
            torch.autograd.graph.increment_version(parameter)
        self._taken = [parameter._version for _, parameter in self._named]

    def _begin_anew(self) -> None:
        self._factor = None
        if self._unchanged is not None:
            self._unchanged.begin_anew()

    def _numbers(self) -> list[dict[str, float | bool]]:
        numbers_of = _RULES[self._kind][1]
        return [numbers_of(group) for group in self.param_groups]

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # A fused optimizer has it: but another one steps than a `torch.amp.GradScaler` would tell the scale.
        return False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, also those that were pushed."""
        self._begin_anew()
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """What it would be without servers, on every rank; all ranks call it, as it is gathered from the servers."""
        rows: defaultdict[str, list[torch.Tensor]] = defaultdict(self._rows.new)
        counts, names = self._served.state(rows)
        views = {name: self._rows.views(rows[name]) for name in names}
        self.state = defaultdict(dict)
        for index, (_, parameter) in enumerate(self._named):
            group = self.param_groups[self._rows.placed[index].group]
            state = _state_of(self._kind, group, counts[index], {name: views[name][index] for name in names})
            if state:
                self.state[parameter] = state
        try:
            return super().state_dict()
        finally:
            self.state = defaultdict(dict)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`, of an optimizer without servers as well. All ranks call it; rank 0's counts.

        Raises:
            InvalidArgument: It is of another model.
        """
        super().load_state_dict(state_dict)
        loaded, self.state = self.state, defaultdict(dict)
        rows: dict[str, list[torch.Tensor]] = defaultdict(self._rows.new)
        counts = []
        for index, (name, parameter) in enumerate(self._named):
            state = {key: value for key, value in loaded.get(parameter, {}).items() if value is not None}
            counts.append(int(state.pop("step", 1 if state else 0)))
            for key, value in state.items():
                if value.shape != parameter.shape:
                    raise InvalidArgument(
                        f"the optimizer's state is of another model: '{key}' of '{name}' has the shape "
                        f"{list(value.shape)}, and here it is {list(parameter.shape)}. Remedy: load the state that was "
                        "kept with this model"
                    )
                self._rows.views(rows[key])[index].copy_(value)
        self._served.load(counts, rows)
        self._sends = True  # weights are loaded with it

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: what each server has is settled."""
        if "_served" in self.__dict__:
            raise InvalidArgument("a ServerOptimizer takes no more parameters; add them before wrapping")
        super().add_param_group(param_group)


def _state_of(
    kind: type[torch.optim.Optimizer], group: Mapping[str, Any], count: int, kept: Mapping[str, torch.Tensor]
) -> dict[str, Any]:  # fmt: skip
    """What the optimizer itself would keep of a parameter."""
    if kind is torch.optim.SGD:
        return dict(kept) if count > 0 else {}
    if kind is not torch.optim.Adagrad and count == 0:
        return {}
    state = {name: value for name, value in kept.items() if name != "max_exp_avg_sq" or group["amsgrad"]}
    return {"step": torch.tensor(float(count), dtype=torch.float32, device="cpu"), **state}


def ServerOptimizer(  # noqa: N802 - the field's name for it
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    staleness: int | None = None,
    check_weights: bool = True,
    broadcast: bool = False,
) -> Any:
    """Wrap an optimizer: the servers of the job hold it, each for an even share of every parameter.

    Ranks push their gradients, servers sum them up and step, and ranks pull the parameters: the memory of the
    optimizer's state, and the work of its steps, leave the ranks. Servers know the rules by their names and take
    numbers alone: rates that schedulers set go along with each step. The parameters become views into pieces of memory.
    The result is of the optimizer's own class and shares its `param_groups`, so that schedulers go on working.

    Args:
        optimizer: `torch.optim.SGD`, `Adam`, `AdamW` or `Adagrad`, and none of their subclasses; before its first step.
            Its parameters are of float32 or float64, all alike, in the host's memory.
        named_parameters: `model.named_parameters()`; names make errors readable.
        staleness: A number: ranks do not wait for each other's gradients. A server steps by each as it comes, without
            averaging it with others, and the rank goes on with the parameters that there are then; but no rank is more
            than so many steps ahead of the slowest. Weights differ until all ranks have called `synchronize`.
        check_weights: Before the first step, compare the parameters of all ranks.
        broadcast: Give all ranks the parameters of rank 0 now.

    Raises:
        InvalidArgument: The job has no servers, an optimizer that servers do not know, that has stepped, or is wrapped;
            parameters of other dtypes, or on a GPU; a `staleness` that is none.
        MismatchError: Ranks wrap different optimizers. On every rank.
    """
    if isinstance(optimizer, _ServerOptimizer) or hasattr(optimizer, "_ring") or hasattr(optimizer, "_pieces"):
        raise InvalidArgument("the optimizer is wrapped already; wrap it once")
    adapter.check_servers()
    if staleness is not None and (type(staleness) is not int or staleness < 0):
        raise InvalidArgument(f"staleness is a whole number of steps, from 0, or None, not {staleness!r}")
    kind = type(optimizer)
    known = ", ".join(sorted(each.__name__ for each in _RULES))
    if kind not in _RULES:
        raise InvalidArgument(
            f"servers do not know {kind.__name__}; use one of {known}, or let the ranks hold it: DistributedOptimizer, "
            "ShardedOptimizer"
        )
    if any(optimizer.state.values()) and kind is not torch.optim.Adagrad:
        raise InvalidArgument("the optimizer has a state already; wrap it first, and load_state_dict() then")
    named = named_of(optimizer, named_parameters)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names = {id(parameter): f"parameter.{index}" for index, parameter in enumerate(parameters)}
    names.update((id(parameter), name) for name, parameter in named)
    everything = [(names[id(parameter)], parameter) for parameter in parameters]
    _check_parameters(everything, optimizer.param_groups)
    if broadcast:
        broadcast_parameters(everything)
    keep_freed_memory(named)
    group_of = [index for index, group in enumerate(optimizer.param_groups) for _ in group["params"]]
    rows = _Rows(everything, group_of)
    rule, numbers_of = _RULES[kind]
    served = Served(
        rule, [numbers_of(group) for group in optimizer.param_groups], _dtype_of(parameters[0]),
        [row.numel() for row in rows.values], rows.placed, staleness,
    )  # fmt: skip
    wrapped = with_methods(optimizer, _ServerOptimizer)
    wrapped.state = defaultdict(dict)
    optimizer.state.clear()
    wrapped._named, wrapped._kind, wrapped._rows = everything, kind, rows
    wrapped._staleness = staleness
    # Where gradients are not averaged, each rank may clip its own.
    wrapped._unchanged = Unchanged(everything, _CLIP) if staleness is None else None
    wrapped._prefix = adapter.name_or_next(None, "served", None)
    wrapped._unchecked = check_weights and global_process_set.size() > 1
    wrapped._sends, wrapped._factor, wrapped._taken = True, None, []
    wrapped._served = served
    return wrapped


def _dtype_of(parameter: torch.Tensor) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def _check_parameters(named: Sequence[tuple[str, torch.Tensor]], groups: Sequence[Mapping[str, Any]]) -> None:
    first_name, first = named[0]
    for name, parameter in named:
        if parameter.device.type != "cpu":
            raise InvalidArgument(f"'{name}' is on {parameter.device}, and servers step what is in the host's memory")
        if parameter.dtype != first.dtype:
            raise InvalidArgument(
                f"'{name}' is of {parameter.dtype} and '{first_name}' of {first.dtype}; servers step parameters of one "
                "dtype: wrap an optimizer for each"
            )
    if any(group.get("differentiable") for group in groups):
        raise InvalidArgument("servers step no optimizer with differentiable=True; let the ranks hold it")
