"""Parameters in one piece of memory, of which each rank owns a share: parts of them, or some of them whole."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from ringcore import InvalidArgument
from ringcore.adapter import ProcessSet

from ringcore_torch.memory import registered_zeros
from ringcore_torch.parameters import check_dtypes


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """A part of a parameter that this rank owns.

    Attributes:
        index: Of the parameter, among all of the optimizer.
        group: Of the optimizer.
        values: The part itself: a row, or the parameter in its own shape where it was dealt out whole.
        gradient: Its averaged gradient, where `values` is to be stepped.
        begin: Where it begins in the parameter, in elements.
        end: Where it ends.
        whole: The parameter was dealt out whole.
    """

    index: int
    group: int
    values: torch.Tensor
    gradient: torch.Tensor
    begin: int
    end: int
    whole: bool

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """A copy of what belongs to it of a tensor of the parameter's state."""
        mine = value if self.whole else value.reshape(-1)[self.begin : self.end]
        return mine.to(self.values.device, copy=True)


class FlatParameters:
    """Parameters of one group and dtype, which become views into `values`.

    Attributes:
        values: All of them, one behind the other.
        gradients: In the same order.
        own: This rank's share of the values: the rows that a reduce-scatter deals to it.
        own_gradients: Where the average of its gradients goes.

    Args:
        parameters: In the order of the optimizer.
        process_set: The ranks.
        whole: Parameters are dealt out whole, to shares of one length: what is left of a share is zeros.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], process_set: ProcessSet, *, whole: bool) -> None:
        self.parameters = list(parameters)
        self.whole = whole
        first = self.parameters[0]
        rank, size = process_set.rank(), process_set.size()
        sizes = [parameter.numel() for parameter in self.parameters]
        self.starts, count = _dealt_whole(sizes, size) if whole else _in_a_row(sizes)
        self.values = registered_zeros(count, first.dtype, first.device)
        self.gradients = registered_zeros(count, first.dtype, first.device)
        for parameter, at in zip(self.parameters, self.starts, strict=True):
            view = self.values[at : at + parameter.numel()].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
        self.begin = count // size * rank + min(count % size, rank)
        self.end = self.begin + count // size + (1 if rank < count % size else 0)
        self.own = self.values[self.begin : self.end]
        self.own_gradients = self.gradients[self.begin : self.end]

    def collect_gradients(self) -> None:
        """Copy what autograd has left; a parameter without a gradient has zeros.

        Raises:
            InvalidArgument: A gradient is sparse, or the parameter is not where it was.
        """
        for parameter, start in zip(self.parameters, self.starts, strict=True):
            view = self.gradients[start : start + parameter.numel()].view(parameter.shape)
            if parameter.data_ptr() != self.values[start:].data_ptr() and parameter.numel() > 0:
                raise InvalidArgument(
                    f"a parameter of shape {list(parameter.shape)} was moved after its optimizer was wrapped; wrap the "
                    "optimizer after moving the model, and load weights with load_state_dict()"
                )
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.is_sparse:
                raise InvalidArgument(
                    f"the gradient of a parameter of shape {list(parameter.shape)} is sparse; use sparse=False, or "
                    "DistributedOptimizer"
                )
            else:
                view.copy_(parameter.grad)


def _in_a_row(sizes: Sequence[int]) -> tuple[list[int], int]:
    starts = list(itertools.accumulate(sizes, initial=0))
    return starts[:-1], starts[-1]


def _dealt_whole(sizes: Sequence[int], ranks: int) -> tuple[list[int], int]:
    """The largest first, each to the rank that has least (Graham 1969): where they begin, and how many elements."""
    load = [0] * ranks
    places = [(0, 0)] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        rank = load.index(min(load))
        places[index] = rank, load[rank]
        load[rank] += sizes[index]
    return [rank * max(load) + at for rank, at in places], ranks * max(load)


def flattened(
    groups: Sequence[dict[str, Any]], process_set: ProcessSet, *, whole: bool = False
) -> tuple[list[FlatParameters], list[Piece]]:  # fmt: skip
    """Lay the parameters of an optimizer in rows, and tell which parts of them this rank owns."""
    flats: list[FlatParameters] = []
    pieces: list[Piece] = []
    first = 0
    for number, group in enumerate(groups):
        parameters = group["params"]
        check_dtypes((f"parameter.{first + index}", one) for index, one in enumerate(parameters))
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for index, parameter in enumerate(parameters):
            kinds.setdefault((parameter.dtype, parameter.device), []).append(index)
        for indices in kinds.values():
            flat = FlatParameters([parameters[index] for index in indices], process_set, whole=whole)
            flats.append(flat)
            for index, start in zip(indices, flat.starts, strict=True):
                begin = max(start, flat.begin)
                end = min(start + parameters[index].numel(), flat.end)
                if begin < end:
                    values, gradient = flat.values[begin:end], flat.gradients[begin:end]
                    if whole:
                        shape = parameters[index].shape
                        values, gradient = values.view(shape), gradient.view(shape)
                    pieces.append(Piece(first + index, number, values, gradient, begin - start, end - start, whole))
        first += len(parameters)
    return flats, pieces
