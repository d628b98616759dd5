"""Give all ranks the same start: parameters and optimizer state of one of them; or see whether they have it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from ringcore import InvalidArgument, ProcessSet, adapter, broadcast_object, global_process_set, rank, synchronize
from ringcore.adapter import Handle

from ringcore_torch._operations import broadcast_async_


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]],
    root_rank: int = 0,
    *,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite tensors with the root's, in place.

    Args:
        params: `model.state_dict()`, `model.named_parameters()`, or anything like them; entries that are no tensors are
            left alone.
        root_rank: Rank whose values win.
        process_set: The ranks that take part.

    Raises:
        InvalidArgument: `params` has no names.
        MismatchError: The models of the ranks differ. On every rank.
    """
    start_parameters(params, root_rank, process_set=process_set)()


def start_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]],
    root_rank: int = 0,
    *,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], None]:
    """Start `broadcast_parameters`; returns what waits for it."""
    pairs = list(params.items()) if isinstance(params, Mapping) else list(params)
    if pairs and not (isinstance(pairs[0], tuple) and len(pairs[0]) == 2):
        raise InvalidArgument("params has no names; pass model.state_dict() or model.named_parameters()")
    handles = [
        broadcast_async_(tensor, root_rank, name=f"broadcast_parameters.{name}", process_set=process_set)
        for name, tensor in pairs
        if isinstance(tensor, torch.Tensor)
    ]
    return functools.partial(_wait, handles)


def _wait(handles: Iterable[Handle]) -> None:
    for handle in handles:
        synchronize(handle)


class _TensorLike:
    """Stands for a tensor in the structure that the root sends ahead."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, *, process_set: ProcessSet = global_process_set
) -> None:
    """Give every rank's optimizer the root's state and hyperparameters.

    Works for every optimizer that keeps its state in `state_dict()`, also before its first step.

    Args:
        optimizer: Over the same parameters on every rank.
        root_rank: Rank whose state wins.
        process_set: The ranks that take part.

    Raises:
        MismatchError: Ranks named different roots. On every rank.
    """
    start_optimizer_state(optimizer, root_rank, process_set=process_set)[1]()


def start_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, *, process_set: ProcessSet = global_process_set
) -> tuple[Any, Callable[[], None]]:
    """Start `broadcast_optimizer_state`; returns the state that is on its way, and what waits for it and loads it."""
    # In the host's memory: the others learn where their state lies only when it is loaded.
    state = map_tensors(optimizer.state_dict(), torch.Tensor.cpu, torch.Tensor) if rank() == root_rank else None
    structure = map_tensors(state, _TensorLike, torch.Tensor)
    structure = broadcast_object(structure, root_rank, name="broadcast_optimizer_state", process_set=process_set)
    if rank() != root_rank:
        state = map_tensors(
            structure, lambda like: torch.empty(like.shape, dtype=like.dtype, device="cpu"), _TensorLike
        )
    tensors: list[torch.Tensor] = []
    map_tensors(state, tensors.append, torch.Tensor)
    handles = [
        broadcast_async_(tensor, root_rank, name=f"broadcast_optimizer_state.{i}", process_set=process_set)
        for i, tensor in enumerate(tensors)
    ]

    def load() -> None:
        _wait(handles)
        if rank() != root_rank and state is not None:
            optimizer.load_state_dict(state)

    return state, load


def map_tensors(value: Any, change: Any, kind: type) -> Any:
    """A copy of nested dicts, lists and tuples with every object of a kind changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change, kind) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, change, kind) for item in value)
    return value


def check_weights_of(
    named: list[tuple[str, torch.Tensor]], process_set: ProcessSet, name: str, *, again: bool = False,
    broadcast_by: str = "DistributedOptimizer", may_differ: bool = True,
) -> None:  # fmt: skip
    """Before the first step: do all ranks begin with the same parameters?

    Args:
        named: The parameters.
        process_set: The ranks that train together.
        name: Identifies the call on all ranks.
        again: See `adapter.check_weights`.
        broadcast_by: What takes `broadcast=True`; "": nothing that the user has made.
        may_differ: It takes `check_weights=False`.

    Raises:
        MismatchError: They do not. On every rank.
    """

    def hash_of(parameter: torch.Tensor) -> int:
        held = parameter.detach().cpu().contiguous()
        return adapter.hash_of(held.data_ptr(), held.numel() * held.element_size())

    adapter.check_weights(
        [name for name, _ in named], (hash_of(parameter) for _, parameter in named), process_set, name=name,
        again=again, may_differ=may_differ, remedy="call broadcast_parameters(model.state_dict(), root_rank=0) before "
        "the first step" + (f", or pass broadcast=True to {broadcast_by}" if broadcast_by else ""),
    )  # fmt: skip
