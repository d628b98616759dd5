"""Parameters in pieces of memory, of which each rank owns a share: parts of them, or some of them whole."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from ringcore import InvalidArgument, RingcoreError
from ringcore.adapter import Handle, ProcessSet

from ringcore_torch import _operations as plain
from ringcore_torch.buckets import SOONER_BUCKET_BYTES, usual_bucket_bytes
from ringcore_torch.compression import Compression, Compressor
from ringcore_torch.memory import registered_zeros
from ringcore_torch.parameters import check_dtypes, of_parameters

# Returns when what was started is done.
Wait = Callable[[], None]


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
        parameters: In the order of the optimizer.
        names: Theirs.
        values: All of them, one behind the other.
        gradients: In the same order.
        own: This rank's share of the values: the rows that a reduce-scatter deals to it.
        own_gradients: Where the average of its gradients goes.

    Args:
        name: Of its operations, the same on all ranks.
        named: The parameters.
        process_set: The ranks.
        whole: Parameters are dealt out whole, to shares of one length: what is left of a share is zeros.
        compression: What gradients are sent as.
    """

    def __init__(
        self, name: str, named: Sequence[tuple[str, torch.Tensor]], process_set: ProcessSet, *, whole: bool,
        compression: type[Compressor] = Compression.none,
    ) -> None:  # fmt: skip
        self._name, self._process_set = name, process_set
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
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
        # What is sent, and this rank's share of what has come.
        self._sent, self._landed = self.gradients, self.own_gradients
        if compression.wire_dtype is not None and first.dtype in compression.wide_dtypes:
            self._sent = registered_zeros(count, compression.wire_dtype, first.device)
            self._landed = torch.empty_like(self.own_gradients, dtype=compression.wire_dtype)

    def check(self) -> None:
        """Refuse what cannot be reduced, before any of it is on its way.

        Raises:
            InvalidArgument: A gradient is sparse, or the parameter is not where it was.
        """
        for name, parameter, start in zip(self.names, self.parameters, self.starts, strict=True):
            if parameter.data_ptr() != self.values[start:].data_ptr() and parameter.numel() > 0:
                raise InvalidArgument(
                    f"'{name}' was moved after its optimizer was wrapped; wrap the optimizer after moving the model, "
                    "and load weights with load_state_dict()"
                )
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise InvalidArgument(f"the gradient of '{name}' is sparse; use sparse=False, or DistributedOptimizer")

    def start_reducescatter(self) -> Wait:
        """Average what autograd has left into `own_gradients`; a parameter without a gradient has zeros."""
        for parameter, at in zip(self.parameters, self.starts, strict=True):
            view = self._sent[at : at + parameter.numel()].view(parameter.shape)
            view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
        start = functools.partial(plain.reducescatter_async, self._sent)
        wait = self._start(start, self._landed, self._name, "the gradient")
        if self._landed is self.own_gradients:
            return wait

        def widen() -> None:
            wait()
            self.own_gradients.copy_(self._landed)

        return widen

    def start_allgather(self, priority: int = 0) -> Wait:
        """Let all ranks have what each has stepped of `own`; the larger the priority, the sooner."""
        for parameter in self.parameters:
            # The engine writes past torch: backward of what was computed from the old values is to say so.
            torch.autograd.graph.increment_version(parameter)
        start = functools.partial(plain.start_allgather, self.own, priority=priority)
        return self._start(start, self.values, f"{self._name}.values", "the value")

    def _start(self, collective: Callable[..., Handle], result: torch.Tensor, name: str, what: str) -> Wait:
        out = None if result.is_cuda else result  # the engine has results in memory of its own there
        with self._told_of(name, what):
            handle = collective(name=name, process_set=self._process_set, out=out)

        def wait() -> None:
            with self._told_of(name, what):
                come = handle.synchronize()
            if out is None:
                result.copy_(come)

        return wait

    @contextlib.contextmanager
    def _told_of(self, name: str, what: str) -> Iterator[None]:
        """Errors speak of parameters by their names, and not of operations."""
        try:
            yield
        except RingcoreError as error:
            raise type(error)(str(error).replace(f"'{name}'", of_parameters(what, self.names))) from None


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
    groups: Sequence[dict[str, Any]], names: Mapping[int, str], prefix: str, process_set: ProcessSet, *, whole: bool,
    compression: type[Compressor],
) -> tuple[list[FlatParameters], list[Piece]]:  # fmt: skip
    """Lay the parameters of an optimizer in rows, and tell which parts of them this rank owns.

    Args:
        groups: The optimizer's.
        names: By `id` of a parameter.
        prefix: Of the names of operations.
        process_set: The ranks.
        whole: See `FlatParameters`.
        compression: See there as well.
    """
    flats: list[FlatParameters] = []
    pieces: list[Piece] = []
    first = 0
    for number, group in enumerate(groups):
        named = [(names[id(parameter)], parameter) for parameter in group["params"]]
        check_dtypes(named)
        for indices in _rows(group["params"], whole=whole):
            own = [named[index] for index in indices]
            flat = FlatParameters(f"{prefix}.{len(flats)}", own, process_set, whole=whole, compression=compression)
            flats.append(flat)
            for index, start, parameter in zip(indices, flat.starts, flat.parameters, strict=True):
                begin = max(start, flat.begin)
                end = min(start + parameter.numel(), flat.end)
                if begin < end:
                    values, gradient = flat.values[begin:end], flat.gradients[begin:end]
                    if whole:
                        values, gradient = values.view(parameter.shape), gradient.view(parameter.shape)
                    pieces.append(Piece(first + index, number, values, gradient, begin - start, end - start, whole))
        first += len(named)
    return flats, pieces


def _rows(parameters: Sequence[torch.Tensor], *, whole: bool) -> Iterator[list[int]]:
    """Which parameters lie in one row: of one dtype and device, neighbours, of so many bytes that it pays to wait.

    Those that are dealt out whole all lie in one: of few no fair shares can be made.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, parameter in enumerate(parameters):
        kinds.setdefault((parameter.dtype, parameter.device), []).append(index)
    limit = usual_bucket_bytes(parameters) if any(one.is_cuda for one in parameters) else SOONER_BUCKET_BYTES
    for indices in kinds.values():
        row: list[int] = []
        nbytes = 0
        for index in indices:
            row.append(index)
            nbytes += parameters[index].numel() * parameters[index].element_size()
            if nbytes >= limit and not whole:
                yield row
                row, nbytes = [], 0
        if row:
            yield row
