"""An optimizer whose state is dealt out to the ranks (ZeRO's first stage: Rajbhandari et al. 2020)."""

from __future__ import annotations

import copy
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from ringcore import InvalidArgument, Max, Sum, adapter, allgather_object
from ringcore.adapter import ProcessSet, global_process_set, name_or_next

from ringcore_torch import _operations as plain
from ringcore_torch.compression import Compression, Compressor
from ringcore_torch.flat import FlatParameters, Piece, flattened
from ringcore_torch.gathering import ForwardGathers
from ringcore_torch.memory import keep_freed_memory
from ringcore_torch.optimizer import named_of
from ringcore_torch.pending import why_not_hidden
from ringcore_torch.scattering import BackwardScatters
from ringcore_torch.state import broadcast_parameters, check_weights_of
from ringcore_torch.unchanged import Unchanged
from ringcore_torch.wrapping import BY_ELEMENT, BY_PARAMETER, with_methods

_log = logging.getLogger("ringcore")
_CLIP = (
    "clip with optimizer.clip_grad_norm(max_norm) in place of torch.nn.utils.clip_grad_norm_; where ranks are to "
    "change their own gradients, assign them: parameter.grad = parameter.grad * factor"
)


class _ShardedOptimizer(torch.optim.Optimizer):
    """The methods that a wrapped optimizer gets; see `ShardedOptimizer`."""

    _flats: list[FlatParameters]
    _pieces: list[Piece]
    _scatters: BackwardScatters | None
    _unchanged: Unchanged | None
    _gathers: ForwardGathers | None
    _inner: torch.optim.Optimizer
    _named: list[tuple[str, torch.Tensor]]
    _process_set: ProcessSet
    _prefix: str
    _unchecked: bool
    _reduced: bool
    _whole: bool

    @adapter.optimizer_step()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Average the gradients of this rank's share, step it, and gather everybody's parameters.

        With `overlap="forward"` it returns while these are on their way.
        """
        if closure is not None:
            raise InvalidArgument("ShardedOptimizer.step takes no closure; call backward() before step()")
        self._check_unchanged()  # also where the averages are there already, and it would change nothing
        if self._unchecked:
            self._unchecked = False
            check_weights_of(self._named, self._process_set, f"{self._prefix}.weights", broadcast_by="ShardedOptimizer")
        self.synchronize()
        for own, shared in zip(self._inner.param_groups, self.param_groups, strict=True):
            own.update({key: value for key, value in shared.items() if key != "params"})
        self._inner.step()
        for piece in self._pieces:
            piece.values.grad = None
        self._begin_anew()
        if self._gathers is not None and self._process_set.size() > 1:
            self._gathers.start()
        else:
            for wait in [flat.start_allgather() for flat in self._flats]:
                wait()
        return None

    def _check_unchanged(self) -> None:
        if self._unchanged is not None:
            try:
                self._unchanged.check()
            except InvalidArgument:
                self._begin_anew()
                raise

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # A fused optimizer has it: but another one steps than a `torch.amp.GradScaler` would tell the scale.
        return False

    def _begin_anew(self) -> None:
        self._reduced = False
        if self._unchanged is not None:
            self._unchanged.begin_anew()
        if self._scatters is not None:
            self._scatters.begin_anew()

    def _settle(self) -> None:
        if self._gathers is not None:
            self._gathers.settle()

    def synchronize(self) -> None:
        """Average the gradients now: each rank has those of its share. For `clip_grad_norm` before `step`."""
        if self._reduced:
            return
        self._settle()
        try:
            self._reduce()
        except BaseException:
            self._begin_anew()
            raise

    def _reduce(self) -> None:
        if self._scatters is not None:
            waits = self._scatters.start()
        else:
            for flat in self._flats:
                flat.check()
            waits = [flat.start_reducescatter() for flat in self._flats]
        touched = self._touched()
        for wait in waits:
            wait()
        for piece in self._pieces:
            piece.values.grad = piece.gradient if touched[piece.index] else None
        self._reduced = True

    def _touched(self) -> list[bool]:
        """Which parameters have a gradient on any rank: the others are not stepped."""
        flags = torch.tensor([one.grad is not None for _, one in self._named], dtype=torch.uint8, device="cpu")
        plain.allreduce_(flags, op=Max, name=f"{self._prefix}.touched", process_set=self._process_set)
        return [bool(flag) for flag in flags.tolist()]

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        """Scale the averaged gradients so that their norm, over all parameters, is at most this.

        In place of `torch.nn.utils.clip_grad_norm_`, which would see this rank's own gradients.

        Returns:
            The norm before.
        """
        self.synchronize()
        own = [piece.values.grad for piece in self._pieces if piece.values.grad is not None]
        squares = torch.zeros((), dtype=torch.float64, device="cpu")
        for gradient in own:
            squares += gradient.double().square().sum().cpu()
        plain.allreduce_(squares, op=Sum, name=f"{self._prefix}.norm", process_set=self._process_set)
        norm = squares.sqrt()
        factor = min(1.0, max_norm / (float(norm) + 1e-6))
        if own:
            torch._foreach_mul_(own, factor)
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, also those that are being averaged."""
        self._begin_anew()
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """This rank's share: for a run of as many ranks. `full_state_dict` has everything."""
        self._settle()
        place = {"rank": self._process_set.rank(), "size": self._process_set.size()}
        state = {key: dict(self._inner.state[piece.values]) for key, piece in enumerate(self._pieces)}
        return {"share": copy.deepcopy(state), "param_groups": self._groups(), **place}

    def full_state_dict(self) -> dict[str, Any]:
        """What `state_dict()` of the optimizer would be without sharding, on every rank; all ranks call it."""
        self._settle()
        share = [(piece.index, dict(self._inner.state[piece.values])) for piece in self._pieces]
        state: dict[int, dict[str, Any]] = {}
        # In the order of the ranks, and so in that of the values.
        for index, part in (part for each in allgather_object(share, process_set=self._process_set) for part in each):
            if not part:
                continue
            if self._whole:
                state[index] = part
                continue
            whole = state.setdefault(
                index, {key: [] if _is_by_element(value) else value for key, value in part.items()}
            )
            for key, value in part.items():
                if _is_by_element(value):
                    whole[key].append(value)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, whole in state.items():
            for key, value in whole.items():
                if isinstance(value, list):
                    whole[key] = torch.cat(value).view(parameters[index].shape)
        return {"state": state, "param_groups": self._groups()}

    def _groups(self) -> list[dict[str, Any]]:
        first, groups = 0, []
        for group in self.param_groups:
            count = len(group["params"])
            groups.append({**group, "params": list(range(first, first + count))})
            first += count
        return groups

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a `state_dict` of this rank, a `full_state_dict`, or one of an optimizer that was not sharded.

        Raises:
            InvalidArgument: The share of another rank, or of a run of another number of ranks, or of another model.
                Nothing is taken over.
        """
        self._settle()
        self._check_fits(state_dict)
        for group, kept in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({key: value for key, value in kept.items() if key != "params"})
        if "share" not in state_dict:
            for piece in self._pieces:
                whole = state_dict["state"].get(piece.index, {})
                self._inner.state[piece.values] = {key: _of_piece(value, piece) for key, value in whole.items()}
            return
        for key, piece in enumerate(self._pieces):
            self._inner.state[piece.values] = copy.deepcopy(state_dict["share"][key])

    def _check_fits(self, state_dict: Mapping[str, Any]) -> None:
        here = (self._process_set.rank(), self._process_set.size())
        if "share" in state_dict and (state_dict["rank"], state_dict["size"]) != here:
            raise InvalidArgument(
                f"this is the optimizer's share of rank {state_dict['rank']} of {state_dict['size']}, and here is rank "
                f"{here[0]} of {here[1]}; keep full_state_dict() for a run of another number of ranks"
            )
        counts = [
            [len(group["params"]) for group in groups] for groups in (state_dict["param_groups"], self.param_groups)
        ]
        if counts[0] != counts[1]:
            raise _other_model(f"its groups have {counts[0]} parameters, and here they have {counts[1]}")
        if "share" in state_dict:
            if len(state_dict["share"]) != len(self._pieces):
                kept, own = len(state_dict["share"]), len(self._pieces)
                raise _other_model(f"this rank's share is of {kept} parameters, and here of {own}")
            for key, piece in enumerate(self._pieces):
                where = f"this rank's part of '{self._named[piece.index][0]}'"
                self._check_shapes(where, state_dict["share"][key], piece.values.shape)
            return
        for index, (name, parameter) in enumerate(self._named):
            self._check_shapes(f"'{name}'", state_dict["state"].get(index, {}), parameter.shape)

    def _check_shapes(self, where: str, state: Mapping[str, Any], shape: torch.Size) -> None:
        """Refuse a state that is none of a parameter of this shape, or of a part of it.

        Args:
            where: The parameter, for the message.
            state: Of the parameter.
            shape: Of the parameter.
        """
        if self._whole and not isinstance(self._inner, BY_PARAMETER):
            return  # who knows what it keeps
        for key, value in state.items():
            if not _is_by_element(value) or value.shape == shape:
                continue
            by_row = len(value.shape) == len(shape) and all(
                a in (1, b) for a, b in zip(value.shape, shape, strict=True)
            )
            if not (self._whole and by_row):  # Adafactor has a number for each row, and for each column
                raise _other_model(
                    f"'{key}' of {where} has the shape {list(value.shape)}, and here it is {list(shape)}"
                )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: what each rank has is settled."""
        if "_flats" in self.__dict__:
            raise InvalidArgument("a ShardedOptimizer takes no more parameters; add them before wrapping")
        super().add_param_group(param_group)


def _is_by_element(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0


def _other_model(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"the optimizer's state is of another model: {what}. Remedy: load the state that was kept with this model"
    )


def _of_piece(value: Any, piece: Piece) -> Any:
    return piece.of(value) if _is_by_element(value) else copy.deepcopy(value)


def ShardedOptimizer(  # noqa: N802 - the field's name for it
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    process_set: ProcessSet = global_process_set,
    check_weights: bool = True,
    broadcast: bool = False,
    by_element: bool = False,
    by_parameter: bool = False,
    overlap: Literal["backward", "forward"] | None = None,
    backward_passes_per_step: int = 1,
    compression: type[Compressor] | str = Compression.none,
) -> Any:
    """Wrap an optimizer: each rank keeps the state of a share of the parameters, and steps that.

    Gradients are reduce-scattered, each rank steps what it owns, and the parameters are gathered: as many bytes as an
    allreduce, and 1/ranks of the optimizer's memory. Muon and Adafactor need each matrix as a whole: these are dealt
    out whole, the largest first, so that each is orthogonalised once in the job. The parameters become views into
    pieces of memory, each of one group and dtype. The result is of the optimizer's own class and shares its
    `param_groups`, so that schedulers go on working.

    Args:
        optimizer: Of a class that works by element, in `torch.optim`: SGD, Adam, AdamW, NAdam, RAdam, Adamax, Adagrad,
            Adadelta, RMSprop, Rprop, ASGD; or by parameter: Muon, Adafactor; before its first step. Move the model
            first.
        named_parameters: `model.named_parameters()`; names make errors readable.
        process_set: The ranks that train together.
        check_weights: Before the first step, compare the parameters of all ranks.
        broadcast: Give all ranks the parameters of the first rank now.
        by_element: An optimizer of another class works by element as well.
        by_parameter: An optimizer of another class steps each parameter by itself: parameters are dealt out whole.
        overlap: What communication runs beside; None: nothing. With "backward" gradients are averaged as soon as they
            are there, on CPUs, where a core or the network has room for that. With "forward" `step` moreover returns
            while parameters are gathered, those first that the next forward needs first, and whatever reads a parameter
            waits for it. That is off, with a warning that says so once, for parameters on GPUs or of a class of their
            own, and once `torch.compile` has compiled something. The results are the same. Parameters that are dealt
            out whole travel all together.
        backward_passes_per_step: With an `overlap`: backward passes whose gradients are summed before they are
            averaged. Without one there may be any number of them before a step.
        compression: What is sent of gradients: `Compression.fp16` or `bf16` halves float32. Parameters are gathered as
            they are.

    Raises:
        InvalidArgument: A class that is not known to work by element, an optimizer that has stepped, or is wrapped; an
            `overlap` that is none, `backward_passes_per_step` below 1; an elastic job; a compression that a
            reduce-scatter cannot have.
    """
    if isinstance(optimizer, _ShardedOptimizer) or hasattr(optimizer, "_ring"):
        raise InvalidArgument("the optimizer is wrapped already; wrap it once")
    _check_options(overlap, backward_passes_per_step)
    compressor = Compression.chosen_for_shares(compression, who="ShardedOptimizer")
    whole = by_parameter or isinstance(optimizer, BY_PARAMETER)
    if not by_element and not whole and not isinstance(optimizer, BY_ELEMENT):
        raise InvalidArgument(
            f"{type(optimizer).__name__} is not known to work by element, and a share of a parameter might be stepped "
            "otherwise than the whole; use DistributedOptimizer, or pass by_element=True or by_parameter=True if it "
            "does, or steps each parameter by itself"
        )
    if any(optimizer.state.values()) and not isinstance(optimizer, torch.optim.Adagrad):
        raise InvalidArgument("the optimizer has a state already; wrap it first, and load_state_dict() then")
    named = named_of(optimizer, named_parameters)
    if broadcast:
        broadcast_parameters(named, root_rank=process_set.ranks[0], process_set=process_set)
    keep_freed_memory(named)
    wrapped = with_methods(optimizer, _ShardedOptimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names = {id(parameter): f"parameter.{index}" for index, parameter in enumerate(parameters)}
    names.update((id(parameter), name) for name, parameter in named)
    prefix = name_or_next(None, "sharded", process_set) if process_set.included() else "sharded"
    flats, pieces = flattened(optimizer.param_groups, names, prefix, process_set, whole=whole, compression=compressor)
    inner: Any = object.__new__(type(optimizer))
    inner.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    inner.param_groups = [
        {**group, "params": [piece.values for piece in pieces if piece.group == index]}
        for index, group in enumerate(optimizer.param_groups)
    ]
    inner.state = defaultdict(dict)
    for piece in pieces:  # Adagrad has one from the beginning
        kept = optimizer.state.get(parameters[piece.index], {})
        inner.state[piece.values] = {key: _of_piece(value, piece) for key, value in kept.items()}
    wrapped.state = defaultdict(dict)
    optimizer.state.clear()
    wrapped._flats, wrapped._pieces, wrapped._inner, wrapped._whole = flats, pieces, inner, whole
    wrapped._scatters = _scatters_of(flats, backward_passes_per_step) if overlap is not None else None
    # With an overlap those that were sent are watched there.
    wrapped._unchanged = Unchanged([(names[id(one)], one) for one in parameters], _CLIP) if overlap is None else None
    wrapped._gathers = _gathers_of(flats, parameters) if overlap == "forward" else None
    wrapped._named = [(names[id(one)], one) for one in parameters]
    wrapped._process_set = process_set
    wrapped._prefix = prefix
    wrapped._unchecked = check_weights and process_set.size() > 1
    wrapped._reduced = False
    return wrapped


def _check_options(overlap: str | None, backward_passes_per_step: int) -> None:
    if overlap not in (None, "backward", "forward"):
        raise InvalidArgument(f'overlap is "backward", "forward" or None, not {overlap!r}')
    if backward_passes_per_step < 1:
        raise InvalidArgument(f"backward_passes_per_step is at least 1, not {backward_passes_per_step}")
    if adapter.is_elastic():
        raise InvalidArgument("in an elastic job the share of a lost rank would be lost; use DistributedOptimizer")


def _scatters_of(flats: list[FlatParameters], passes_per_step: int) -> BackwardScatters:
    # On a GPU gradients come in several streams, and the step waits for them all.
    on_gpu = any(flat.values.is_cuda for flat in flats)
    sends = not on_gpu and adapter.has_room_to_overlap(torch.get_num_threads())
    return BackwardScatters(flats, passes_per_step, sends=sends)


def _gathers_of(flats: list[FlatParameters], parameters: list[torch.Tensor]) -> ForwardGathers | None:
    if reason := why_not_hidden(parameters):
        _log.warning('overlap="forward" is off: %s', reason)
        return None
    return ForwardGathers(flats)
