"""Gradients as products of two narrow matrices (Vogels, Karimireddy & Jaggi 2019)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ringcore._errors import InvalidArgument
from ringcore.adapter.collectives import ReduceOp
from ringcore.adapter.exchange import Exchange, are_finite, mean
from ringcore.job.process_sets import ProcessSet

if TYPE_CHECKING:
    from ringcore.adapter.exchange import Array, Arrays

# A matrix is sent whole unless it shrinks to less than half.
_LEAST_GAIN = 2


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

    def exchange(self, gradients: Arrays, name: str, process_set: ProcessSet) -> Arrays:  # noqa: D102
        import numpy as np

        matrices = {each: gradient.reshape(gradient.shape[0], -1) for each, gradient in gradients.items()}
        ps = {each: matrix @ self._query(each, matrix) for each, matrix in matrices.items()}
        mean(list(ps.values()), f"{name}.p", process_set, ReduceOp.SUM)
        for each, p in ps.items():
            ps[each] = np.linalg.qr(p)[0]
        queries = {each: np.ascontiguousarray(matrix.T @ ps[each]) for each, matrix in matrices.items()}
        mean(list(queries.values()), f"{name}.q", process_set)
        for each, matrix in matrices.items():
            matrix[...] = ps[each] @ queries[each].T
        if are_finite(queries.values()):
            self.queries = queries
        return gradients

    def _query(self, name: str, matrix: Array) -> Array:
        import numpy as np

        if name not in self.queries:
            columns = min(*matrix.shape, self.rank)
            random = np.random.default_rng(zlib.crc32(name.encode()))  # the same on every rank
            self.queries[name] = random.standard_normal((matrix.shape[1], columns)).astype(matrix.dtype)
        return np.linalg.qr(self.queries[name])[0]

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {**super().state_dict(), "queries": {each: query.copy() for each, query in self.queries.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        import numpy as np

        super().load_state_dict(state)
        self.queries = {each: np.array(query) for each, query in state["queries"].items()}
