"""Gradients as products of two narrow matrices (Vogels, Karimireddy & Jaggi 2019)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ringcore import _native
from ringcore._errors import InvalidArgument
from ringcore.adapter.collectives import ReduceOp
from ringcore.adapter.exchange import Exchange, are_finite, mean
from ringcore.job.process_sets import ProcessSet

if TYPE_CHECKING:
    from ringcore.adapter.exchange import Array, Arrays

# A matrix is sent whole unless it shrinks to less than half.
_LEAST_GAIN = 2
# So many bytes of a gradient are worked on at a time, which stay in the cache of a core; and at least so many rows.
_BLOCK_BYTES = 512 * 1024
_LEAST_ROWS = 16


class PowerSGD(Exchange):
    """Sends rank * (rows + columns) numbers of a matrix, by one step of a power iteration that goes on from the last.

    A gradient of more than two dimensions is a matrix of its first one and all others. Vectors, and matrices that do
    not shrink to less than half, are sent whole.

    Args:
        rank: Of the product: how many columns the narrow matrices have.
        warmup_steps: See `Exchange`.

    Attributes:
        queries: The right matrices of the last step.
    """

    def __init__(self, rank: int, warmup_steps: int = 0) -> None:
        if rank < 1:
            raise InvalidArgument(f"powersgd: the rank is at least 1, not {rank}")
        super().__init__(warmup_steps)
        self.rank = rank
        self.queries: Arrays = {}

    def shrinks(self, gradient: Array) -> bool:  # noqa: D102
        if gradient.ndim < 2 or gradient.size == 0:
            return False
        rows, columns = int(gradient.shape[0]), math.prod(gradient.shape[1:])
        return bool((rows + columns) * min(rows, columns, self.rank) * _LEAST_GAIN < rows * columns)

    def exchange(self, gradients: Arrays, name: str, process_set: ProcessSet, *, keeps: bool) -> None:  # noqa: D102
        import numpy as np

        # Narrow matrices lie on their sides: a product whose rows are long takes less time.
        matrices = {each: gradient.reshape(gradient.shape[0], -1) for each, gradient in gradients.items()}
        for each, gradient in gradients.items():
            if each not in self.errors:
                self.errors[each] = np.zeros_like(gradient)
        errors = {each: self.errors[each].reshape(matrix.shape) for each, matrix in matrices.items()}
        ps = {each: np.empty((self._narrow(matrix), len(matrix)), matrix.dtype) for each, matrix in matrices.items()}
        for each, matrix in matrices.items():
            query = np.array(self._query(each, matrix).T, order="C")
            _native.orthonormalise(query)
            for rows, whole in _sums(matrix, errors[each]):
                ps[each][:, rows] = query @ whole.T
        mean(list(ps.values()), f"{name}.p", process_set, ReduceOp.SUM)
        queries = {each: np.zeros((len(p), matrices[each].shape[1]), p.dtype) for each, p in ps.items()}
        for each, matrix in matrices.items():
            _native.orthonormalise(ps[each])
            for rows, whole in _sums(matrix, errors[each]):
                queries[each] += ps[each][:, rows] @ whole
        mean(list(queries.values()), f"{name}.q", process_set)
        is_finite = are_finite(queries.values())
        for each, matrix in matrices.items():
            for rows in _blocks(matrix):
                lost = errors[each][rows]
                if keeps and is_finite:
                    lost += matrix[rows]
                _native.multiply_narrow(ps[each], queries[each], rows.start, matrix[rows])
                if keeps and is_finite:
                    lost -= matrix[rows]
        if is_finite:
            self.queries.update((each, query.T) for each, query in queries.items())

    def _narrow(self, matrix: Array) -> int:
        return int(min(*matrix.shape, self.rank))

    def _query(self, name: str, matrix: Array) -> Array:
        import numpy as np

        if name not in self.queries:
            random = np.random.default_rng(zlib.crc32(name.encode()))  # the same on every rank
            self.queries[name] = random.standard_normal((matrix.shape[1], self._narrow(matrix))).astype(matrix.dtype)
        return self.queries[name]

    def shared(self, gradients: Arrays) -> Arrays:  # noqa: D102
        import numpy as np

        matrices = {each: one.reshape(one.shape[0], -1) for each, one in gradients.items() if self.shrinks(one)}
        return {each: np.array(self._query(each, matrix), order="C") for each, matrix in matrices.items()}

    def share(self, shared: Arrays) -> None:  # noqa: D102
        self.queries.update(shared)

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {**super().state_dict(), "queries": {each: query.copy() for each, query in self.queries.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        import numpy as np

        super().load_state_dict(state)
        self.queries = {each: np.array(query) for each, query in state["queries"].items()}


def _blocks(matrix: Array) -> Iterator[slice]:
    rows = max(_LEAST_ROWS, _BLOCK_BYTES // (matrix.shape[1] * matrix.itemsize))
    for begin in range(0, len(matrix), rows):
        yield slice(begin, min(begin + rows, len(matrix)))


def _sums(matrix: Array, error: Array) -> Iterator[tuple[slice, Array]]:
    """Block by block of its rows a gradient and what was lost before, in memory that the next block is written to."""
    import numpy as np

    room: Array | None = None
    for rows in _blocks(matrix):
        room = np.empty_like(matrix[rows]) if room is None else room
        yield rows, np.add(matrix[rows], error[rows], out=room[: rows.stop - rows.start])
