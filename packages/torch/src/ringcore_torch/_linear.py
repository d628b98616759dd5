"""The collectives as linear maps: each knows its transpose, which is what its gradients go through.

Seen over all ranks a collective takes one long vector, of all their inputs, to another one. A gradient with regard to
the sum of all ranks' losses goes through the transposed matrix, and that is a collective again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from ringcore import Average, InvalidArgument, Sum
from ringcore.adapter import ProcessSet, ReduceOp, global_process_set

from ringcore_torch import _operations as plain
from ringcore_torch.compression import Compressor


class LinearMap(Protocol):
    """A collective on one tensor, or on several as a group."""

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results, without anything recorded."""

    def transposed(self) -> LinearMap:
        """What gradients of the results go through; after `run`, whose shapes it may need."""


def _check_differentiable(what: str, name: str, op: ReduceOp) -> None:
    if op not in (Average, Sum):
        raise InvalidArgument(f"{what} '{name}' with op={op.name} has no gradient; use op=Sum or op=Average")


class Allreduce:
    """A symmetric matrix: its own transpose."""

    def __init__(self, name: str, op: ReduceOp, compression: type[Compressor], **options: Any) -> None:
        self._name, self._op, self._compression, self._options = name, op, compression, options

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `LinearMap`."""
        if code := self._compression.code_for(*tensors):
            handle = plain.start_allreduce(tensors, code, name=self._name, op=self._op, blocking=True, **self._options)
            results: list[torch.Tensor] = handle.synchronize()
            return results
        if len(tensors) == 1:
            return [plain.allreduce(tensors[0], name=self._name, op=self._op, **self._options)]
        return plain.grouped_allreduce(tensors, name=self._name, op=self._op, **self._options)

    def transposed(self) -> LinearMap:
        """See `LinearMap`."""
        _check_differentiable("allreduce", self._name, self._op)
        return Allreduce(f"{self._name}.gradient", self._op, self._compression, **self._options)


class Allgather:
    """All ranks' rows, times a factor."""

    def __init__(self, name: str, process_set: ProcessSet, factor: float = 1.0) -> None:
        self._name, self._process_set, self._factor = name, process_set, factor
        self._rows: list[Sequence[int]] = []
        self._shapes: list[torch.Size] = []

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `LinearMap`."""
        if len(tensors) == 1:
            handle = plain.allgather_async(tensors[0], name=self._name, process_set=self._process_set)
            results = [handle.synchronize()]
        else:
            handle = plain.grouped_allgather_async(tensors, name=self._name, process_set=self._process_set)
            results = handle.synchronize()
        self._rows = [handle.rows(i) for i in range(len(tensors))]
        self._shapes = [tensor.shape for tensor in tensors]
        return results if self._factor == 1.0 else [result * self._factor for result in results]

    def transposed(self) -> LinearMap:
        """See `LinearMap`."""
        return _OwnRows(f"{self._name}.gradient", self._process_set, self._factor, self._rows, self._shapes)


class _OwnRows:
    """This rank's rows of the sums over all ranks: the transpose of an allgather."""

    def __init__(
        self,
        name: str,
        process_set: ProcessSet,
        factor: float,
        rows: Sequence[Sequence[int]],
        shapes: Sequence[torch.Size],
    ) -> None:
        self._name, self._process_set, self._factor = name, process_set, factor
        self._rows, self._shapes = rows, shapes

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `LinearMap`."""
        totals = plain.grouped_allreduce(
            tensors, op=Sum, name=self._name, postscale_factor=self._factor, process_set=self._process_set
        )
        me = self._process_set.rank()
        return [
            total[sum(rows[:me]) : sum(rows[: me + 1])].reshape(shape)
            for total, rows, shape in zip(totals, self._rows, self._shapes, strict=True)
        ]

    def transposed(self) -> LinearMap:
        """See `LinearMap`."""
        return Allgather(f"{self._name}.gradient", self._process_set, self._factor)


class Broadcast:
    """The root's values for everybody."""

    def __init__(self, name: str, root_rank: int, process_set: ProcessSet) -> None:
        self._name, self._root_rank, self._process_set = name, root_rank, process_set

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `LinearMap`."""
        (tensor,) = tensors
        return [plain.broadcast(tensor, self._root_rank, name=self._name, process_set=self._process_set)]

    def transposed(self) -> LinearMap:
        """See `LinearMap`."""
        return _SumAtRoot(f"{self._name}.gradient", self._root_rank, self._process_set)


class _SumAtRoot:
    """The sum over all ranks at the root, and zeros elsewhere: the transpose of a broadcast."""

    def __init__(self, name: str, root_rank: int, process_set: ProcessSet) -> None:
        self._name, self._root_rank, self._process_set = name, root_rank, process_set

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `LinearMap`."""
        (tensor,) = tensors
        numbers = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        total = plain.reduce(numbers, self._root_rank, op=Sum, name=self._name, process_set=self._process_set)
        if total is None:
            total = torch.zeros_like(numbers)
        return [torch.view_as_complex(total) if tensor.is_complex() else total]

    def transposed(self) -> LinearMap:
        """See `LinearMap`."""
        return Broadcast(f"{self._name}.gradient", self._root_rank, self._process_set)


class Alltoall:
    """Rows for each rank.

    Attributes:
        counts: How many came from each rank, where there are splits; after `run`.
    """

    counts: torch.Tensor

    def __init__(self, name: str, splits: torch.Tensor | Sequence[int] | None, process_set: ProcessSet) -> None:
        self._name, self._splits, self._process_set = name, splits, process_set
        self._received: list[int] = []

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `LinearMap`."""
        (tensor,) = tensors
        handle = plain.alltoall_async(tensor, self._splits, name=self._name, process_set=self._process_set)
        result = handle.synchronize()
        self._received = list(handle.rows())
        if self._splits is None:
            return [result]
        rows, self.counts = result
        return [rows]

    def transposed(self) -> LinearMap:
        """See `LinearMap`."""
        return Alltoall(f"{self._name}.gradient", self._received, self._process_set)


class Reducescatter:
    """This rank's share of the rows of a reduction."""

    def __init__(self, name: str, op: ReduceOp, **options: Any) -> None:
        self._name, self._options = name, {"op": op, **options}

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `LinearMap`."""
        if len(tensors) == 1:
            return [plain.reducescatter(tensors[0], name=self._name, **self._options)]
        return plain.grouped_reducescatter(tensors, name=self._name, **self._options)

    def transposed(self) -> LinearMap:
        """See `LinearMap`."""
        op: ReduceOp = self._options["op"]
        _check_differentiable("reducescatter", self._name, op)
        process_set = self._options.get("process_set", global_process_set)
        factor = self._options.get("prescale_factor", 1.0) * self._options.get("postscale_factor", 1.0)
        return Allgather(
            f"{self._name}.gradient", process_set, factor / process_set.size() if op is Average else factor
        )
